"""A day under a judge that asks a model pays for what is new, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("openai", reason="a judge that asks a model needs the extra `judge`")

from palio.agents.server import ModelServer
from palio.cli.corpus import app as corpus_app
from palio.cli.race import app as race_app
from palio.corpus.lineage import read_lineage
from palio.corpus.opinions import Recalled
from palio.judging.llm.injection import GULLIBLE, Scripted
from palio.records import JudgeId, ReasoningVerdict, ResumeError, Suite, Trajectory
from palio.suites.files import write_suite
from palio.world.catalogue import write_catalogue
from tests.corpus.making import PROBLEMS, made_trajectory
from tests.rollout.agents import small


class Counted(Scripted):
    """The scripted model, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        return super().complete(body)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Counted]:
    counted = Counted()
    with ModelServer(counted) as server:
        ends = f'endpoints = [{{ url = "{server.url}" }}]'
        (tmp_path / "judge.toml").write_text(f'[[members]]\nmodel = "{GULLIBLE}"\n{ends}\n')
        other = f'[[members]]\nmodel = "{GULLIBLE}"\ntemperature = 0.5\n{ends}\n'
        (tmp_path / "other.toml").write_text(other)
        yield counted


def palio(app: object, *arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])  # type: ignore[arg-type]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_verdicts_of_earlier_days_are_not_paid_for_again(model: Counted, tmp_path: Path) -> None:
    world, problems = small()
    write_catalogue(world.catalogue, tmp_path / "catalogue")
    for name, held in (("few", problems[:3]), ("all", problems[:4])):
        write_suite(Suite(suite_id=name, version="1", problems=held), tmp_path / f"{name}.json")
    (tmp_path / "corpus.toml").write_text("coefficient = 0.3\n")
    catalogue = ("--catalogue", tmp_path / "catalogue")
    for agent in ("careful", "terse"):
        words = ("--agents", agent, "--suite", tmp_path / "all.json", *catalogue, "--inline")
        palio(race_app, *words, "--out", tmp_path / agent)
    judged = ("--judge", f"llm:{tmp_path / 'judge.toml'}", "--json")

    def command(name: str, suite: str, *days: str) -> list[object]:
        traces = [w for d in days for w in ("--trajectories", tmp_path / d / "trajectories.jsonl")]
        suites = ("--suite", tmp_path / f"{suite}.json", *catalogue)
        return [*traces, *suites, "--config", tmp_path / "corpus.toml", "--out", tmp_path / name]

    palio(corpus_app, "build", *command("one", "few", "careful"), *judged)
    assert model.asked == 4
    grow = ("daily", "--previous", tmp_path / "one", *command("two", "all", "careful", "terse"))
    made = palio(corpus_app, *grow, *judged)
    assert "4 were known, 1 got their problem" in made.stderr
    assert model.asked == 8, "four new runs; the one that got its problem was judged before"
    palio(corpus_app, "build", *command("whole", "all", "careful", "terse"), *judged)
    for name in ("provenance.jsonl", "train.jsonl", "heldout.jsonl", "train.parquet"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    judges = {one.verdicts.reasoning.judge.name for one in read_lineage(tmp_path / "two")  # type: ignore[union-attr]
              if one.verdicts.reasoning}  # fmt: skip
    assert judges == {f"llm:{GULLIBLE}"}
    inputs = json.loads((tmp_path / "two" / "manifest.json").read_text())["inputs"]
    assert f"judge:llm:{GULLIBLE}" in inputs
    asked = model.asked
    with pytest.raises(ResumeError, match=r"judged by llm:scripted-gullible .* be by evidence"):
        palio(corpus_app, *grow)
    with pytest.raises(ResumeError, match="name the same judge"):
        palio(corpus_app, *grow, "--judge", f"llm:{tmp_path / 'other.toml'}")
    assert model.asked == asked


class Asked:
    """A judge that remembers whom it judged."""

    judge_id = JudgeId(name="asked", version="1")

    def __init__(self) -> None:
        self.names: list[str] = []

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        self.names.append(trajectory.trajectory_id)
        return said(trajectory.trajectory_id, self.judge_id, "judged")


def said(name: str, judge: JudgeId, status: Any) -> ReasoningVerdict:
    return ReasoningVerdict(trajectory_id=name, problem_id="", judge=judge, status=status)


def test_only_what_the_very_judge_has_judged_is_recalled() -> None:
    judge = Asked()
    other = JudgeId(name="asked", version="2")
    known = {
        "a": said("a", judge.judge_id, "judged"),
        "b": said("b", other, "judged"),
        "c": said("c", judge.judge_id, "unjudged"),
    }
    recalled = Recalled(judge, known)
    for name in "abcd":
        verdict = recalled.verdict(made_trajectory(name, PROBLEMS[0]))
        assert (verdict.trajectory_id, verdict.judge) == (name, judge.judge_id)
    assert judge.names == ["b", "c", "d"]
    assert recalled.judge_id == judge.judge_id
