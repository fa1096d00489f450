"""palio corpus shard, from the command line to a build that takes its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from typer.testing import CliRunner

from palio.cli.main import app
from palio.corpus.readers.importing import TraceImport
from palio.corpus.shards.shard import MANIFEST
from palio.records import InputError, Suite
from palio.suites import write_suite
from tests.corpus.making import PROBLEMS
from tests.shards.making import chat_row, mixed_rows, write_rows

PALIO = (sys.executable, "-c", "from palio.cli.main import run; run()")


def test_shard_says_what_it_did_and_resumes(tmp_path: Path) -> None:
    for number in range(2):
        write_rows(tmp_path / "in" / f"{number}.jsonl.zst", mixed_rows(10, number * 10))
    (tmp_path / "c.toml").write_text("token_budget = 20000\n")
    command = ["corpus", "shard", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    command += ["--config", str(tmp_path / "c.toml"), "--executor", "inline", "--json"]
    first = json.loads(CliRunner().invoke(app, command).stdout)
    assert (first["made"], first["resumed"], first["in"]) == (2, 0, 24)
    assert first["in"] == first["kept"] + sum(first["rejected"].values())
    again = json.loads(CliRunner().invoke(app, command).stdout)
    assert again == {**first, "made": 0, "resumed": 2}
    shown = CliRunner().invoke(app, command[:-1])
    assert "orphan_result" in shown.stdout
    assert "24 rows in" in shown.stdout
    wrong = CliRunner().invoke(app, [*command, "--executor", "cloud"])
    assert wrong.exit_code != 0


def test_an_import_reads_the_folder_and_what_lies_beside_it_is_passed_over(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", [chat_row(n) for n in range(5)] + [b"{"])
    out = tmp_path / "out"
    CliRunner().invoke(app, ["corpus", "shard", str(path), "--out", str(out)])
    reader = TraceImport([out])
    read = [found.trajectory for found in reader]
    assert read == [found.trajectory for found in TraceImport([path])]
    assert not reader.rejects
    assert len(reader.skipped) == 2
    assert reader.formats == {"chat": 5}


def test_looking_for_shards_makes_no_folder(tmp_path: Path) -> None:
    write_suite(Suite(suite_id="s", version="1", problems=PROBLEMS), tmp_path / "suite.json")
    words = ["corpus", "assemble", str(tmp_path / "nope"), "--out", str(tmp_path / "corpus")]
    missed = CliRunner().invoke(app, [*words, "--suite", str(tmp_path / "suite.json")])
    assert isinstance(missed.exception, InputError)
    assert not (tmp_path / "nope").exists()


def test_interrupted_it_ends_without_a_traceback_and_goes_on(tmp_path: Path) -> None:
    for number in range(6):
        write_rows(tmp_path / "in" / f"{number}.jsonl.zst", mixed_rows(1500, number * 1500))
    command = [*PALIO, "corpus", "shard", str(tmp_path / "in")]
    command += ["--out", str(tmp_path / "out"), "--json"]
    child = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob(f"*{MANIFEST}")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode != 0
    assert b"Traceback" not in said
    ended = subprocess.run(command, capture_output=True, check=True, timeout=120)
    found = json.loads(ended.stdout)
    assert found["resumed"] >= 1
    assert found["shards"] == 6
