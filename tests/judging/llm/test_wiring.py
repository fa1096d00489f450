"""A race holds on to one judge, and a corpus can be built under a judge that asks a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("openai", reason="a judge that asks a model needs the extra `judge`")

from palio.agents.server import ModelServer
from palio.arena.standings import Standings
from palio.cli.corpus import app as corpus_app
from palio.cli.judge import app as judge_app
from palio.cli.race import app as race_app
from palio.judging.llm.injection import GULLIBLE, Scripted
from palio.judging.store import VERDICTS, read_verdicts
from palio.records import (
    ConfigError,
    MissingDependencyError,
    ReasoningVerdict,
    ResumeError,
    Suite,
    from_json,
)
from palio.suites.files import write_suite
from palio.world.catalogue import write_catalogue
from tests.rollout.agents import small


@pytest.fixture
def arena(tmp_path: Path) -> list[str]:
    world, problems = small()
    write_catalogue(world.catalogue, tmp_path / "catalogue")
    write_suite(Suite(suite_id="s", version="1", problems=problems[:4]), tmp_path / "suite.json")
    return [
        *("--suite", str(tmp_path / "suite.json")),
        *("--catalogue", str(tmp_path / "catalogue")),
    ]


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[str]:
    with ModelServer(Scripted()) as server:
        path = tmp_path / "judge.toml"
        path.write_text(
            f'[[members]]\nmodel = "{GULLIBLE}"\nendpoints = [{{ url = "{server.url}" }}]\n'
        )
        yield f"llm:{path}"


def palio(app: object, *arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])  # type: ignore[arg-type]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def reasoning(folder: Path) -> list[ReasoningVerdict]:
    return [v for v in read_verdicts(folder / VERDICTS) if isinstance(v, ReasoningVerdict)]


def test_a_race_under_a_model_judge_pins_it(arena: list[str], judge: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    race = ["--agents", "careful,hasty", *arena, "--out", out, "--inline"]
    made = palio(race_app, *race, "--judge", judge, "--json")
    standings = from_json(made.stdout, Standings)
    assert {row.agent for row in standings.ineligible} == {"careful", "hasty"}
    verdicts = reasoning(out)
    assert len(verdicts) == 8
    assert {verdict.judge.name for verdict in verdicts} == {f"llm:{GULLIBLE}"}
    assert all(verdict.opinions[0].model == GULLIBLE for verdict in verdicts)
    for name in ("run.json", "manifest.json"):
        pinned = json.loads((out / name).read_text())["config"]["judge"]
        assert pinned["config"] == verdicts[0].judge.config_digest
    with pytest.raises(ResumeError, match=r"judge\.name: .*scripted-gullible.* -> .*evidence-v2"):
        palio(race_app, *race)
    again = palio(race_app, *race, "--judge", judge, "--json")
    assert json.loads(again.stdout) == json.loads(made.stdout)
    assert len(reasoning(out)) == 8, "replies are kept, so the same verdicts come out"
    beside = palio(judge_app, "rejudge", out, "--judge", "evidence", "--json")
    assert json.loads(beside.stdout)["changes"]["n"] == 8
    assert json.loads((out / "standings.json").read_text()) == json.loads(made.stdout)


def test_a_corpus_under_a_model_judge(arena: list[str], judge: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    palio(race_app, "--agents", "careful", *arena, "--out", out, "--inline")
    (tmp_path / "corpus.toml").write_text("coefficient = 0.3\n")
    build = ["build", "--trajectories", out / "trajectories.jsonl", *arena]
    options = ["--out", tmp_path / "corpus", "--config", tmp_path / "corpus.toml"]
    made = palio(corpus_app, *build, *options, "--judge", judge, "--json")
    assert made.exit_code == 0, made.output
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert f"judge:llm:{GULLIBLE}" in manifest["inputs"]
    assert (tmp_path / "corpus" / "judge.replies").read_text().count("\n") >= 4


def test_refusals_are_clear(
    arena: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = ["--agents", "hasty", *arena, "--out", tmp_path / "out", "--inline"]
    with pytest.raises(ConfigError, match="no judge is called 'gpt'"):
        palio(race_app, *race, "--judge", "gpt")
    path = tmp_path / "judge.toml"
    path.write_text('[[members]]\nmodel = "m"\nendpoints = [{ url = "http://a/v1", key = "NO" }]\n')
    with pytest.raises(ConfigError, match="NO is not set"):
        palio(race_app, *race, "--judge", f"llm:{path}")
    path.write_text('[[members]]\nmodel = "m"\nendpoints = [{ url = "http://a/v1" }]\n')
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(MissingDependencyError, match=r"palio\[judge\]"):
        palio(race_app, *race, "--judge", f"llm:{path}")
    assert not (tmp_path / "out").exists(), "nothing ran before the judge was there"


def test_a_judge_that_is_not_there_is_said_with_where_to_look(tmp_path):
    from palio.judging.llm.config import read_config
    from palio.records import ConfigError

    with pytest.raises(ConfigError, match=r"nothing\.toml: no judge here.*docs/judging\.md"):
        read_config(tmp_path / "nothing.toml")
