"""Agents that read follow a decisive datum and no placebo; agents that do not follow neither."""

from __future__ import annotations

import pytest

from palio.evaluate.counterfactual import Counterfactual, ForkedRun, measure
from palio.judging import EvidenceJudge
from tests.counterfactual.small import AGENTS, forked, recorded, setting


@pytest.fixture(scope="module")
def found() -> Counterfactual:
    judge = EvidenceJudge()
    runs = [run for name in AGENTS for run in recorded(name)]
    forks = [fork for name in AGENTS for fork in forked(name)]
    return measure(forks, [{run.trajectory_id: judge.verdict(run) for run in runs}])


@pytest.mark.parametrize("name", ["careful", "terse"])
def test_readers_follow_decisive_data(found: Counterfactual, name: str) -> None:
    flips = found.agents[name]
    assert flips.treatment.n >= 10
    assert (flips.treatment.rate or 0) >= 0.75
    assert flips.emitted.successes == flips.treatment.successes


def test_who_does_not_read_follows_nothing(found: Counterfactual) -> None:
    assert found.agents["hasty"].treatment.n >= 9
    assert found.agents["hasty"].treatment.successes == 0


@pytest.mark.parametrize("name", AGENTS)
def test_nobody_follows_a_placebo_and_everybody_copies(found: Counterfactual, name: str) -> None:
    flips = found.agents[name]
    assert flips.placebo.n >= 3
    assert flips.placebo.successes == 0
    assert flips.copy.n == flips.runs
    assert flips.copy.successes == flips.copy.n


@pytest.mark.parametrize("name", ["narrator", "classifier"])
def test_what_the_harness_decides_is_not_the_models(found: Counterfactual, name: str) -> None:
    flips = found.agents[name]
    assert flips.treatment.successes > 0
    assert flips.emitted.successes == 0
    assert set(flips.kinds) >= {"title"}


def test_only_cited_data_are_changed_where_any_is(found: Counterfactual) -> None:
    for name in AGENTS:
        for run in forked(name):
            arms = {fork.cited for fork in run.forks if fork.arm == "treatment"}
            assert len(arms) <= 1
            assert all(not fork.cited for fork in run.forks if fork.arm == "placebo")
    assert found.agents["careful"].cited.n == found.agents["careful"].treatment.n
    assert found.agents["hasty"].cited.n == 0


def test_changes_are_about_what_was_recommended() -> None:
    products = setting()[0].catalogue.products
    for run in forked("careful"):
        for fork in run.forks:
            if fork.arm == "treatment":
                assert fork.product_id in run.answer
                assert fork.rival not in run.answer
                assert products[fork.product_id]
            assert all(change.before != change.after for change in fork.changes)


def test_a_swap_moves_the_choice_to_the_rival_that_now_fits() -> None:
    moved = [
        fork.rival in fork.answer
        for run in forked("careful")
        for fork in run.forks
        if fork.arm == "treatment" and fork.rival
    ]
    assert moved
    assert sum(moved) / len(moved) > 0.5


def test_the_judge_is_set_beside_the_flips(found: Counterfactual) -> None:
    (check,) = found.judges
    assert check.n == found.overall.runs
    assert sum(rate.n for rate in check.bins.values()) == found.overall.treatment.n
    spearman = check.emitted.spearman
    assert spearman.value is not None
    assert spearman.low < spearman.value < spearman.high
    assert spearman.clusters == 9


def test_runs_that_cite_nothing_are_left_out_of_what_is_said_of_cited_data(
    found: Counterfactual,
) -> None:
    (check,) = found.judges
    citing = [
        run
        for name in AGENTS
        for run in forked(name)
        if any(fork.cited for fork in run.forks if fork.arm == "treatment")
    ]
    assert 0 < check.cited.spearman.n == len(citing) < check.gross.spearman.n


def test_unforked_runs_are_counted_and_in_no_rate() -> None:
    run = ForkedRun(trajectory_id="t", problem_id="p", agent="a", unforkable="why")
    found = measure([run, run])
    assert found.unforkable == {"a": {"why": 2}}
    assert found.overall.runs == 0
    assert found.overall.treatment.rate is None
    assert found.judges == ()
