"""A checkpoint is served as any model is, and the commands say what they did."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.server import ModelServer
from palio.broker.upstream import HttpUpstream
from palio.cli.main import app
from palio.records import InputError
from palio.train.checkpoint import load_checkpoint, save_checkpoint
from palio.train.engine import Engine
from palio.train.model import Qwen3
from palio.train.tokenizer import ChatTokenizer

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "a mug"}], "max_tokens": 5}


@pytest.fixture
def folder(small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    save_checkpoint(made, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return made


def test_the_served_engine_answers_what_the_engine_answers(folder: Path) -> None:
    with Engine(folder, slots=4) as engine, ModelServer(engine) as server:
        upstream = HttpUpstream(server.url)
        try:
            served = upstream.complete(ASKED)
        finally:
            upstream.close()
        assert served["choices"] == engine.complete(ASKED)["choices"]
        assert engine.models == ("tiny",)


@pytest.mark.slow
def test_the_serve_command_serves_until_interrupted(folder: Path) -> None:
    code = "from palio.cli.main import run; run()"
    command = [sys.executable, "-c", code, "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving tiny at http://127.0.0.1:")
        upstream = HttpUpstream(line.split()[-1])
        try:
            assert upstream.complete(ASKED)["usage"]["completion_tokens"] == 5
        finally:
            upstream.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_the_commands_name_what_is_wrong(tmp_path: Path) -> None:
    runner = CliRunner()
    missing = ["train", "demo", "--corpus", str(tmp_path), "--out", str(tmp_path / "o")]
    assert "no such corpus file" in str(runner.invoke(app, missing).exception)
    assert "no readable checkpoint" in str(runner.invoke(app, ["serve", str(tmp_path)]).exception)
    assert "no learning curve" in str(
        runner.invoke(app, ["train", "curve", str(tmp_path)]).exception
    )


def test_the_train_command_shows_its_parts() -> None:
    shown = CliRunner().invoke(app, ["train", "--help"])
    assert shown.exit_code == 0
    assert {"run", "curve"} <= set(shown.stdout.split())


def test_a_run_folder_named_for_its_checkpoint_says_which(folder: Path) -> None:
    with pytest.raises(InputError, match=f"name {folder}"):
        load_checkpoint(folder.parent)
