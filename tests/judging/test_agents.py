"""The judge against runs of the bundled agents: they differ in kind, so verdicts must differ."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.cli import judge as judge_cli
from palio.cli import score as score_cli
from palio.judging import EvidenceJudge, OutcomeScorer, default_encoder, richness_verdict
from palio.judging.store import VERDICTS, append_verdicts, read_verdicts
from palio.records import InputError, OutcomeVerdict, Suite, Trajectory, to_json
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.suites import write_suite
from palio.world import COMPACT, World, write_catalogue
from palio.world.synthesis import Synthesis, compact_config, synthesise

AGENTS = ("careful", "terse", "sloppy", "hasty", "narrator", "classifier")
PROBLEMS = 24


@pytest.fixture(scope="module")
def world() -> Synthesis:
    return synthesise(compact_config(5, products=1500, problems=90))


@pytest.fixture(scope="module")
def runs(world: Synthesis) -> dict[str, list[Trajectory]]:
    built = World.build(world.catalogue, COMPACT)
    step = len(world.problems) // PROBLEMS
    chosen = world.problems[::step][:PROBLEMS]
    return {
        name: [
            run_problem(
                find_agent(name), problem, built, driver=InlineDriver(), upstream=ScriptedUpstream()
            )
            for problem in chosen
        ]
        for name in AGENTS
    }


def mean_quality(runs: list[Trajectory]) -> float:
    verdicts = [EvidenceJudge().verdict(run) for run in runs]
    return sum(verdict.quality or 0.0 for verdict in verdicts) / len(runs)


def test_good_agents_weigh_and_poor_ones_do_not(runs: dict[str, list[Trajectory]]) -> None:
    quality = {name: mean_quality(of) for name, of in runs.items()}
    assert quality["careful"] >= 0.75
    assert quality["careful"] > quality["terse"] > quality["sloppy"] >= quality["hasty"]
    assert quality["hasty"] <= 0.3
    reached = {
        name: max(EvidenceJudge().verdict(run).quality or 0 for run in of)
        for name, of in runs.items()
    }
    assert reached["terse"] <= 0.7
    assert reached["sloppy"] <= 0.5
    assert reached["hasty"] <= 0.3


def test_who_emitted_the_calls_separates_agentic_from_subtask(
    runs: dict[str, list[Trajectory]],
) -> None:
    for name, of in runs.items():
        axes = Counter(richness_verdict(run).axis for run in of)
        expected = "subtask" if name in {"narrator", "classifier"} else "agentic"
        assert axes == {expected: PROBLEMS}


def test_outcomes_order_the_agents_and_strict_asks_no_less_than_oro(
    runs: dict[str, list[Trajectory]], world: Synthesis
) -> None:
    scorer = OutcomeScorer(world.catalogue.products, default_encoder())
    problems = {problem.problem_id: problem for problem in world.problems}
    rate = {}
    for name, of in runs.items():
        oro = [scorer.verdict(problems[run.problem_id], run, "oro").success for run in of]
        strict = [scorer.verdict(problems[run.problem_id], run, "strict").success for run in of]
        assert all(a >= b for a, b in zip(oro, strict, strict=True))
        rate[name] = sum(strict) / len(of)
    assert rate["careful"] >= 0.9
    assert rate["careful"] > rate["sloppy"] > rate["hasty"]


@pytest.fixture
def folder(tmp_path: Path, runs: dict[str, list[Trajectory]], world: Synthesis) -> Path:
    rows = [to_json(run) for run in runs["careful"] + runs["hasty"]]
    (tmp_path / "trajectories.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    suite = Suite(suite_id="s", version="1", problems=world.problems)
    write_suite(suite, tmp_path / "suite.json")
    write_catalogue(world.catalogue, tmp_path / "catalogue")
    return tmp_path


def test_the_commands_append_verdicts_and_keep_the_old(folder: Path) -> None:
    judged = CliRunner().invoke(judge_cli.app, ["run", str(folder), "--json"])
    assert judged.exit_code == 0, judged.output
    summary = json.loads(judged.stdout)
    assert summary["trajectories"] == 2 * PROBLEMS
    assert summary["axis"] == {"agentic": 2 * PROBLEMS}
    options = ["--suite", str(folder / "suite.json"), "--catalogue", str(folder / "catalogue")]
    arguments = ["run", str(folder), *options, "--profile", "oro", "--profile", "strict", "--json"]
    scored = CliRunner().invoke(score_cli.app, arguments)
    assert scored.exit_code == 0, scored.output
    assert json.loads(scored.stdout)["oro"]["scored"] == 2 * PROBLEMS
    before = (folder / VERDICTS).read_bytes()
    assert len(list(read_verdicts(folder / VERDICTS))) == 8 * PROBLEMS
    again = CliRunner().invoke(judge_cli.app, ["run", str(folder), "--json"])
    assert json.loads(again.stdout)["appended"] == 0
    assert (folder / VERDICTS).read_bytes() == before
    wider = CliRunner().invoke(judge_cli.app, ["run", str(folder), "--agentic", "0.5"])
    assert wider.exit_code == 0
    assert (folder / VERDICTS).read_bytes().startswith(before)
    assert len(list(read_verdicts(folder / VERDICTS))) == 10 * PROBLEMS


def test_the_commands_refuse_what_they_cannot_do(folder: Path) -> None:
    wrong = ["--suite", str(folder / "suite.json"), "--catalogue", str(folder / "catalogue")]
    for arguments in (
        ["run", str(folder / "none"), *wrong],
        ["run", str(folder), *wrong, "--profile", "other"],
        ["run", str(folder), *wrong, "--encoder", "qwen"],
    ):
        result = CliRunner().invoke(score_cli.app, arguments)
        assert result.exit_code != 0
        assert not (folder / VERDICTS).exists()
    assert CliRunner().invoke(judge_cli.app, ["run", str(folder / "none")]).exit_code != 0


def test_a_half_written_verdict_is_skipped_and_spoils_no_other(folder: Path) -> None:
    CliRunner().invoke(judge_cli.app, ["run", str(folder)])
    whole = list(read_verdicts(folder / VERDICTS))
    data = (folder / VERDICTS).read_bytes()
    (folder / VERDICTS).write_bytes(data[:-40])
    assert append_verdicts(folder / VERDICTS, whole) == 1
    assert list(read_verdicts(folder / VERDICTS)) == whole
    (folder / VERDICTS).write_bytes(b'{"type":"outcome"}\n')
    with pytest.raises(InputError, match="verdicts.jsonl:1"):
        list(read_verdicts(folder / VERDICTS))
    assert not [v for v in whole if isinstance(v, OutcomeVerdict)]
