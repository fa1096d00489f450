"""Real tasks and products: every pipeline part that the oracle needs, and an agent that works."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from palio.agents.registry import ORACLE, find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.judging import EvidenceJudge, OutcomeScorer, StubEncoder, default_encoder
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.world.catalogue import read_catalogue
from palio.world.importing import import_suite
from palio.world.world import FULL, World

pytestmark = pytest.mark.shared
KINDS = ("product", "shop", "voucher", "web_simpleqa")


@pytest.fixture(scope="module")
def world(shared_data: Path) -> World:
    catalogue, _ = read_catalogue(shared_data / "products_real.jsonl")
    return World.build(catalogue, FULL)


def test_the_oracle_solves_all_public_tasks(shared_data: Path, world: World):
    files = [shared_data / f"tasks_shoppingbench_{kind}.jsonl" for kind in KINDS]
    suite, rejects = import_suite(*files)
    assert rejects == ()
    scorer = OutcomeScorer(world.catalogue.products, StubEncoder(0.0))
    solved = 0
    for problem in suite.problems:
        run = run_problem(ORACLE, problem, world, driver=InlineDriver())
        assert not run.eligible
        solved += scorer.verdict(problem, run, "upstream").success
    assert (solved, len(suite.problems)) == (900, 900)


def test_shoppers_run_an_arena_suite_with_sensible_verdicts(shared_data: Path, world: World):
    suite, _ = import_suite(shared_data / "oro_suite_v3.json")
    scorer = OutcomeScorer(world.catalogue.products, default_encoder())
    judge, driver, upstream = EvidenceJudge(), InlineDriver(), ScriptedUpstream(0)
    solved: Counter[str] = Counter()
    bins: dict[str, Counter[float | None]] = {}
    for name in ("careful", "hasty"):
        bins[name] = Counter()
        for problem in suite.problems:
            run = run_problem(find_agent(name), problem, world, driver=driver, upstream=upstream)
            assert (run.fault, run.differences) == (None, ())
            solved[name] += scorer.verdict(problem, run, "oro").success
            bins[name][judge.verdict(run).quality] += 1
    assert solved["careful"] >= 24
    assert solved["careful"] >= solved["hasty"]
    assert bins["careful"][0.9] >= 20
    assert set(bins["hasty"]) == {0.3}
