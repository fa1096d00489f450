"""What a policy is told of is all that there is: in prompt, broker, manifest and ceiling."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.agents.server import ModelServer
from palio.cli.main import app
from palio.corpus.replay import Replayer
from palio.evaluate.policy import harness_tools
from palio.evaluate.rollouts import RolloutRow, read_identity, read_rollouts
from palio.records import ConfigError, ResumeError, Suite
from palio.suites.files import write_suite
from palio.world.catalogue import Catalogue, write_catalogue
from palio.world.synthesis import compact_config, synthesise
from palio.world.tools import FOUR_TOOLS, SEVEN_TOOLS, Toolbox
from palio.world.world import COMPACT, World

VOUCHER = {"product_prices": "100", "voucher_type": "fixed", "discount_value": 10}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("find_product", {"q": "blue"}),
    ("calculate_voucher", VOUCHER),
    ("recommend_product", {"product_ids": "1"}),
    ("terminate", {"status": "success"}),
)


class Stubborn:
    """A model that calculates a voucher whatever it is told; `told` grows by every request."""

    def __init__(self) -> None:
        self.told: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.told.add(tuple(tool["function"]["name"] for tool in body["tools"]))
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        name, arguments = CALLS[turn]
        call = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": f"c{turn}", "type": "function", "function": call}]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Catalogue]:
    folder = tmp_path_factory.mktemp("shop")
    made = synthesise(compact_config(5, products=400, problems=6))
    write_catalogue(made.catalogue, folder / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=made.problems), folder / "suite.json")
    return folder, made.catalogue


def evaluated(shop: Path, out: Path, *words: str) -> str:
    given = ("--suite", str(shop / "suite.json"), "--catalogue", str(shop / "catalogue"))
    line = ["eval", "run", *given, "--out", str(out), *words]
    result = CliRunner().invoke(app, line, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def asked(shop: Path, out: Path, *words: str) -> tuple[set[tuple[str, ...]], list[RolloutRow]]:
    model = Stubborn()
    with ModelServer(model) as server:
        evaluated(shop, out, "--base-url", server.url, "--model", "stubborn", *words)
    return model.told, list(read_rollouts(out / "greedy"))


@pytest.mark.parametrize(
    "named", ["4", "terminate,view_product_information,find_product,recommend_product"]
)
def test_four_tools_reach_prompt_broker_and_manifest(
    shop: tuple[Path, Catalogue], tmp_path: Path, named: str
) -> None:
    told, rows = asked(shop[0], tmp_path, "--tools", named)
    assert told == {FOUR_TOOLS}
    assert len(rows) == 6
    for row in rows:
        found, voucher, *_ = row.trajectory.dispatches
        assert not found.error
        assert voucher.tool == "calculate_voucher"
        assert voucher.error == (
            "there is no tool 'calculate_voucher'; tools: " + ", ".join(FOUR_TOOLS)
        )
        assert row.score.behaviour.refused_calls == 1
        assert row.score.behaviour.valid_turns == 3
    assert read_identity(tmp_path / "greedy")["settings"]["tools"] == list(FOUR_TOOLS)


def test_by_default_there_are_seven(shop: tuple[Path, Catalogue], tmp_path: Path) -> None:
    told, rows = asked(shop[0], tmp_path)
    assert told == {SEVEN_TOOLS}
    assert not any(event.error for row in rows for event in row.trajectory.dispatches)


def test_another_choice_does_not_resume(shop: tuple[Path, Catalogue], tmp_path: Path) -> None:
    model = ("--model", "scripted-hasty")
    plain = json.loads(evaluated(shop[0], tmp_path, *model, "--tools", "4", "--json"))
    assert plain["tools"] == list(FOUR_TOOLS)
    with pytest.raises(ResumeError, match=r"settings differ \(settings: tools\)"):
        evaluated(shop[0], tmp_path, *model)
    assert "harness of 4 tools" in evaluated(shop[0], tmp_path, *model, "--tools", "4")


def test_the_ceiling_has_the_tools_that_the_policy_has(
    shop: tuple[Path, Catalogue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()
    honest = Toolbox.call

    def call(box: Toolbox, name: str, arguments: Any) -> Any:
        called.add(name)
        return honest(box, name, arguments)

    monkeypatch.setattr(Toolbox, "call", call)
    given = ("--suite", str(shop[0] / "suite.json"), "--catalogue", str(shop[0] / "catalogue"))
    for tools, known in (("4", FOUR_TOOLS), ("7", SEVEN_TOOLS)):
        called.clear()
        result = CliRunner().invoke(app, ["eval", "floors", *given, "--tools", tools])
        assert result.exit_code == 0, result.output
        assert called <= {*known}
        assert ("calculate_voucher" in called) == (tools == "7")


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("5", "no tool '5'"),
        ("", "no tool ''"),
        ("4,find_product", "no tool '4'"),
        ("find_product,recommend_product,terminate,python_execute", "no tool 'python_execute'"),
        ("find_product,terminate", "without recommend_product cannot answer"),
        ("find_product,recommend_product", "without terminate cannot end"),
    ],
)
def test_no_harness_is_guessed(named: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        harness_tools(named)


def test_a_withheld_tool_is_no_forgery_to_the_corpus(
    shop: tuple[Path, Catalogue], tmp_path: Path
) -> None:
    rows = asked(shop[0], tmp_path, "--tools", "4")[1]
    replayer = Replayer(World.build(shop[1], COMPACT))
    for row in rows:
        replay = replayer.replay(row.trajectory)
        assert replay.worst == "match", replay
        assert [each.status for each in replay.observations][1] == "outside"
