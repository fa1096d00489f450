"""A checkpoint races as an agent file, gets a standing, and is refused when its weights changed."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.agents.server import ModelServer
from palio.broker.upstream import HttpUpstream, Upstream
from palio.cli.main import app
from palio.records import ConfigError, InputError, IntegrityError, Suite
from palio.suites.files import write_suite
from palio.train.checkpoint import checkpoint_folder, checkpoint_name, save_checkpoint
from palio.train.engine import Engine
from palio.train.model import Qwen3
from palio.train.racer import beside, racer_of, racer_spec, with_checkpoints, write_racer
from palio.train.serving import open_checkpoint
from palio.train.tokenizer import ChatTokenizer
from palio.world.catalogue import write_catalogue
from tests.train.conftest import Shop


@pytest.fixture
def stage(small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "sft"
    save_checkpoint(
        folder / "checkpoint", small, tokenizer, config={}, inputs={}, counts={}, seed=0
    )
    return folder


def test_a_checkpoint_races_and_gets_a_standing(stage: Path, shop: Shop, tmp_path: Path) -> None:
    run = CliRunner().invoke
    agent, out = tmp_path / "trained.py", tmp_path / "race"
    made = run(app, ["agent", "from-checkpoint", str(stage), "--out", str(agent)])
    assert made.exit_code == 0, made.output
    write_catalogue(shop.world.catalogue, tmp_path / "cat")
    write_suite(Suite(suite_id="s", version="1", problems=shop.problems[:2]), tmp_path / "s.json")
    raced = run(
        app,
        [
            *("race", "--agents", f"careful,{agent}", "--suite", str(tmp_path / "s.json")),
            *("--catalogue", str(tmp_path / "cat"), "--out", str(out), "--driver", "inline"),
        ],
    )
    assert raced.exit_code == 0, raced.output
    told = json.loads((out / "standings.json").read_bytes())
    assert "trained" in json.dumps(told)
    models = {
        json.loads(line)["agent"]["model"]
        for line in (out / "trajectories.jsonl").read_bytes().splitlines()
    }
    assert models == {"scripted-careful", "trained-sft"}


def test_other_weights_are_another_agent(stage: Path, tmp_path: Path) -> None:
    agent = tmp_path / "a.py"
    write_racer(stage, agent)
    with pytest.raises(InputError, match="exists"):
        write_racer(stage, agent)
    racer = racer_of(agent)
    assert racer is not None
    assert racer.digest in agent.read_text()
    (stage / "checkpoint" / "manifest.json").write_text("{}")
    with (
        pytest.raises(IntegrityError, match="made from"),
        open_checkpoint_of(agent),
    ):
        pass


def open_checkpoint_of(*agents: Path) -> AbstractContextManager[Upstream]:
    class Nobody:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            raise AssertionError(body)

    return with_checkpoints(Nobody(), agents)


def test_it_is_tried_with_its_own_weights(
    stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripted-careful, who answers for other files, solves these; an untrained model none."""
    agent = tmp_path / "a.py"
    write_racer(stage, agent)
    words = ["agent", "test", str(agent), "--problems", "3", "--driver", "inline", "--json"]
    real, asked = Engine.complete, list[str]()

    def complete(self: Engine, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["model"])
        return real(self, body)

    monkeypatch.setattr(Engine, "complete", complete)
    for more, solves in (([], False), (["--model", "scripted-careful"], True)):
        tried = CliRunner().invoke(app, [*words, *more])
        assert tried.exit_code == 0, tried.output
        rows = json.loads(tried.stdout)
        assert any(row["success"]["oro"] for row in rows) == solves
        assert sum(row["inferences"] for row in rows) == len(asked) or solves
        assert {*asked} == (set() if solves else {"a-sft"})
        asked.clear()
    idle = CliRunner().invoke(app, [*words, "--model-url", "http://127.0.0.1:9/v1"])
    assert isinstance(idle.exception, ConfigError)
    assert "--model-url would be asked nothing" in str(idle.exception)


def test_no_other_model_answers_in_its_name(stage: Path, tmp_path: Path) -> None:
    """The agent file alone, another's weights beside it, and two checkpoints of one name."""
    agent, moved = tmp_path / "a.py", tmp_path / "moved" / "a.py"
    write_racer(stage, agent)
    moved.parent.mkdir()
    shutil.copy(agent, moved)
    tried = CliRunner().invoke(app, ["agent", "test", str(moved)])
    assert "names its weights is not there" in str(tried.exception)
    with pytest.raises(InputError, match="not there"):
        racer_spec(moved)
    other = tmp_path / "run2" / "sft" / "checkpoint"
    shutil.copytree(stage / "checkpoint", other)
    (other / "manifest.json").write_bytes(b" " + (other / "manifest.json").read_bytes())
    second = tmp_path / "second" / "a.py"
    second.parent.mkdir()
    racer = write_racer(other.parent, second)
    assert racer.model == "a-sft"
    with pytest.raises(ConfigError, match="both called 'a-sft'"), open_checkpoint_of(agent, second):
        pass
    shutil.copy(beside(second), beside(agent))
    with pytest.raises(IntegrityError, match="beside it names"):
        racer_of(agent)


def test_a_run_and_a_stage_name_their_checkpoint(stage: Path) -> None:
    assert checkpoint_folder(stage) == stage / "checkpoint"
    assert checkpoint_name(stage) == checkpoint_name(stage / "checkpoint") == "sft"


def test_served_as_the_openai_client_asks(stage: Path) -> None:
    openai = pytest.importorskip("openai", reason="the client that users have")
    with open_checkpoint(stage, slots=4) as engine, ModelServer(engine) as server:
        url = server.url if server.url.endswith("/v1") else f"{server.url}/v1"
        with openai.OpenAI(base_url=url, api_key="none") as client:
            assert [model.id for model in client.models.list()] == ["sft"]
            asked = {
                "model": "sft",
                "messages": [{"role": "user", "content": "a mug"}],
                "max_tokens": 6,
                "tools": [
                    {"type": "function", "function": {"name": "find_product", "parameters": {}}}
                ],
            }
            whole = client.chat.completions.create(**asked, logprobs=True)
            streamed = list(client.chat.completions.create(**asked, logprobs=True, stream=True))
            with pytest.raises(openai.BadRequestError, match="tool_choice"):
                client.chat.completions.create(**asked, tool_choice="required")
            long = [{"role": "user", "content": "a mug " * 4000}]
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(**{**asked, "messages": long})
            assert refused.value.code == "context_length_exceeded"
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
        assert text == whole.choices[0].message.content
        told = whole.choices[0].logprobs.content
        assert len(told) == whole.usage.completion_tokens
        assert all(each.logprob < 0 for each in told)
        marked = [chunk.choices[0].logprobs for chunk in streamed if chunk.choices]
        pieces = [one for each in marked if each for one in each.content]
        assert [one.token for one in pieces] == [one.token for one in told]
        # the two lie in the cache at other places, and a sum in another order has another last bit
        assert [one.logprob for one in pieces] == pytest.approx(
            [one.logprob for one in told], abs=1e-4
        )
        assert whole.usage.completion_tokens <= 6
        plain = HttpUpstream(server.url)
        plain.close()
