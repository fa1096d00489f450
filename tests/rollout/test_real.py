"""On the real tasks the oracle is always right, and real agents get sensible verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from palio.agents.registry import ORACLE, find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.judging import default_encoder
from palio.records import Ending, Problem
from palio.rollout import Job, read_trajectories, run_suite
from palio.rollout.journal import FILE
from palio.rollout.verdicts import judge_runs
from palio.sandbox.inline import InlineDriver
from palio.sandbox.process import SubprocessDriver
from palio.world.catalogue import read_catalogue
from palio.world.importing import import_suite
from palio.world.world import World

pytestmark = pytest.mark.shared
KINDS = ("product", "shop", "voucher", "web_simpleqa")


@pytest.fixture(scope="module")
def world(shared_data: Path) -> World:
    catalogue, _ = read_catalogue(shared_data / "products_real.jsonl")
    return World.build(catalogue)


def tasks(shared_data: Path) -> tuple[Problem, ...]:
    files = [shared_data / f"tasks_shoppingbench_{kind}.jsonl" for kind in KINDS]
    suite, rejects = import_suite(*files)
    assert not rejects
    return suite.problems


def test_the_oracle_succeeds_on_900_of_900(world: World, shared_data: Path, tmp_path: Path) -> None:
    problems = tasks(shared_data)
    assert len(problems) == 900
    jobs = [Job(ORACLE, problem, world) for problem in problems]
    run_suite(jobs, tmp_path, driver=InlineDriver(), concurrency=1)
    runs = list(read_trajectories(tmp_path / FILE))
    assert all(run.ending is Ending.terminated and not run.eligible for run in runs)
    judged = judge_runs(runs, problems, [world.catalogue], default_encoder(), ("upstream",))
    assert sum(run.outcomes["upstream"].success for run in judged) == 900


def test_an_agentic_agent_on_suite_v3(world: World, shared_data: Path, tmp_path: Path) -> None:
    suite, rejects = import_suite(shared_data / "oro_suite_v3.json")
    assert not rejects
    agents = [find_agent(name) for name in ("careful", "hasty", "narrator")]
    jobs = [Job(spec, problem, world) for problem in suite.problems for spec in agents]
    with SubprocessDriver() as driver:
        report = run_suite(jobs, tmp_path, driver=driver, upstream=ScriptedUpstream())
    assert report.unscored == 0
    runs = list(read_trajectories(tmp_path / FILE))
    judged = list(judge_runs(runs, suite.problems, [world.catalogue], default_encoder()))
    assert all(v.status == "scored" for run in judged for v in run.outcomes.values())

    def mean(agent: str, what: str) -> float:
        values = [getattr(run, what) for run in judged if run.trajectory.agent.name == agent]
        return sum(
            v.quality or 0 if what == "reasoning" else v.richness or 0 for v in values
        ) / len(values)

    assert mean("careful", "richness") == 1.0
    assert mean("narrator", "richness") == 0.0
    assert mean("careful", "reasoning") > mean("hasty", "reasoning")
    careful = [run for run in judged if run.trajectory.agent.name == "careful"]
    assert sum(run.outcomes["oro"].success for run in careful) >= len(careful) / 3
    assert not any(run.trajectory.differences for run in judged)
