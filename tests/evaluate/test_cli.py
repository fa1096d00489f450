"""`palio eval` in a real process world: run, floors, compare, as tables and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer, RequestError
from palio.cli.main import app
from palio.records import ConfigError, InputError, Suite, bytes_digest
from palio.suites.files import read_suite, write_suite
from palio.world.catalogue import write_catalogue
from palio.world.synthesis import compact_config, synthesise


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("eval")
    made = synthesise(compact_config(5, products=400, problems=12))
    write_catalogue(made.catalogue, folder / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=made.problems), folder / "suite.json")
    return ("--suite", str(folder / "suite.json"), "--catalogue", str(folder / "catalogue"))


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["eval", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_run_then_compare(files: tuple[str, ...], tmp_path: Path) -> None:
    for model in ("scripted-careful", "scripted-hasty"):
        out = str(tmp_path / model)
        text = call("run", *files, "--out", out, "--model", model, "--k", "2", "--json")
        plain = json.loads(text)
        stage = plain["stages"][0]
        assert stage["name"] == model
        assert stage["kind"] == "scripted"
        assert stage["intent"]["overall"]["n"] == 12
        assert stage["pass_at"]["2"]["samples"] == 24
        assert {floor["name"] for floor in plain["floors"]} == {"first-hit", "random-hit", "reader"}
        assert plain["comparisons"][0]["b"] == "first-hit"
    folders = [str(tmp_path / model / "greedy") for model in ("scripted-careful", "scripted-hasty")]
    rows = json.loads(call("compare", *folders, *files[:2], "--json"))
    assert rows[0]["intent"] == "overall"
    assert rows[0]["difference"]["difference"] > 0
    assert "paired" in call("compare", *folders, *files[:2])


class Flaky:
    """A scripted model whose server refuses every third request."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        query = next(m["content"] for m in body["messages"] if m["role"] == "user")
        if hash_of(query) % 3 == 0:
            raise RequestError(401, "the key has run out")
        return ScriptedUpstream().complete({**body, "model": "scripted-careful"})


def hash_of(text: str) -> int:
    return int(bytes_digest(text.encode())[7:15], 16)


def test_car_unscored_and_difficulty_are_told(files: tuple[str, ...], tmp_path: Path) -> None:
    problems = read_suite(Path(files[1])).problems
    gone = [p for p in problems if hash_of(p.query) % 3 == 0]
    assert 0 < len(gone) < 12
    with ModelServer(Flaky()) as server:
        given = ("run", *files, "--out", str(tmp_path), "--base-url", server.url, "--model", "m")
        stage = json.loads(call(*given, "--json"))["stages"][0]
        text = call(*given)
    assert stage["unscored"] == len(gone)
    assert stage["intent"]["overall"]["n"] == 12 - len(gone)
    assert stage["car"] == stage["intents"]["overall"]["car"]["value"] == 1
    levels = {p.difficulty for p in problems}
    assert set(stage["difficulties"]) == levels
    for level, told in stage["difficulties"].items():
        own = [p for p in problems if p.difficulty == level]
        assert told["problems"] == len(own)
        assert told["unscored"] == sum(p in gone for p in own)
        assert told["asr"]["n"] == told["car"]["n"] == told["problems"] - told["unscored"]
    assert "CAR" in text
    assert "m by intent and difficulty" in text
    first, second = text.split("m by intent and difficulty")
    (row,) = [line.split() for line in first.splitlines() if line.split()[:1] == ["m"]]
    assert row[-1] == str(len(gone))
    assert levels <= {line.split()[0] for line in second.splitlines() if line.strip()}


def test_floors_as_a_table(files: tuple[str, ...]) -> None:
    text = call("floors", *files)
    assert "first-hit" in text
    assert "n 12" in text


def test_no_interval_is_cut_off(files: tuple[str, ...], tmp_path: Path) -> None:
    text = call(
        *("run", *files, "--model", "scripted-hasty", "--k", "2", "--out", str(tmp_path)),
    )  # fmt: skip
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_no_policy_is_a_clear_error(files: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one policy"):
        call("run", *files, "--out", str(tmp_path))


def test_only_the_held_out_problems_of_a_corpus(files: tuple[str, ...], tmp_path: Path) -> None:
    problems = read_suite(Path(files[1])).problems
    pools = {p.problem_id: "heldout" if n % 3 == 0 else "train" for n, p in enumerate(problems)}
    (tmp_path / "pools.json").write_text(json.dumps(pools))
    corpus = ("--corpus", str(tmp_path))
    assert "n 4" in call("floors", *files, *corpus)
    assert "n 8" in call("floors", *files, *corpus, "--pool", "train")
    text = call("run", *files, *corpus, "--out", str(tmp_path / "out"), "--model", "scripted-hasty")
    assert "n 4" in text
    with pytest.raises(InputError, match="in pool 'development'"):
        call("floors", *files, *corpus, "--pool", "development")
