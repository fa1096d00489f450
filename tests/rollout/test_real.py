"""On the real tasks the oracle is always right, and real agents get sensible verdicts."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from palio.agents.registry import ORACLE, find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.records import Ending, Problem
from palio.rollout import Job, read_trajectories, run_suite
from palio.rollout.journal import FILE
from palio.rollout.verdicts import Judged, Panel, judge_all
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
    catalogues = {world.catalogue.catalogue_id: world.catalogue.products}
    panel = Panel(problems, catalogues, ("upstream",), unknown="refuse")
    assert sum(run.success("upstream") for run in judge_all(runs, panel)) == 900


def test_an_agentic_agent_on_suite_v3(world: World, shared_data: Path, tmp_path: Path) -> None:
    suite, rejects = import_suite(shared_data / "oro_suite_v3.json")
    assert not rejects
    agents = [find_agent(name) for name in ("careful", "hasty", "narrator")]
    jobs = [Job(spec, problem, world) for problem in suite.problems for spec in agents]
    with SubprocessDriver() as driver:
        report = run_suite(jobs, tmp_path, driver=driver, upstream=ScriptedUpstream())
    assert report.unscored == 0
    runs = list(read_trajectories(tmp_path / FILE))
    catalogues = {world.catalogue.catalogue_id: world.catalogue.products}
    judged = list(judge_all(runs, Panel(suite.problems, catalogues, unknown="refuse")))
    assert all(v.status == "scored" for run in judged for v in run.verdicts.outcomes)
    assert _mean_richness(judged, "careful") == 1.0
    assert _mean_richness(judged, "narrator") == 0.0
    assert _mean_quality(judged, "careful") > _mean_quality(judged, "hasty")
    careful = [run for run in judged if run.trajectory.agent.name == "careful"]
    assert sum(run.success("oro") for run in careful) >= len(careful) / 3
    assert not any(run.trajectory.differences for run in judged)


def _mean_richness(judged: list[Judged], agent: str) -> float:
    found = [run.verdicts.richness for run in judged if run.trajectory.agent.name == agent]
    return fmean(v.richness or 0 for v in found if v is not None)


def _mean_quality(judged: list[Judged], agent: str) -> float:
    found = [run.verdicts.reasoning for run in judged if run.trajectory.agent.name == agent]
    return fmean(v.quality or 0 for v in found if v is not None)
