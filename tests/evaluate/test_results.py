"""Greedy and sampled stay apart, unscored leaves the denominator, and every rate has its n."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.evaluate.pairing import compare_results
from palio.evaluate.report_data import StageResult
from palio.evaluate.results import EvalResult, RolloutScore, summarise
from palio.evaluate.summary import stage_summary
from palio.records import InputError, canonical_json
from tests.evaluate.sample import CLUSTERS, PROBLEMS, result, score


def greedy(scores: list[RolloutScore], name: str = "p") -> EvalResult:
    return summarise(
        scores, PROBLEMS, name=name, samples=1, temperature=0.0, seed=0, clusters=CLUSTERS
    )


def test_greedy_rate_by_intent_and_difficulty() -> None:
    made = greedy([score(p.problem_id, 0, p.kind == "shop") for p in PROBLEMS])
    assert list(made.intents) == ["overall", "product", "shop", "voucher"]
    assert [g.asr["oro"].successes for g in made.intents.values()] == [20, 0, 20, 0]
    assert [g.asr["oro"].n for g in made.intents.values()] == [60, 20, 20, 20]
    assert {d: g.problems for d, g in made.difficulties.items()} == {"easy": 30, "hard": 30}
    assert made.overall.pass_at == {}
    assert made.overall.pass_at_1_worst is None


def test_unscored_leaves_the_denominator_and_returns_in_the_worst_case() -> None:
    scores = [score(p.problem_id, 0, True) for p in PROBLEMS[:50]]
    scores += [score(p.problem_id, 0, False, status="unscored") for p in PROBLEMS[50:]]
    overall = greedy(scores).overall
    assert (overall.asr["oro"].successes, overall.asr["oro"].n) == (50, 50)
    assert overall.unscored_rollouts == 10
    assert overall.asr_worst is not None
    assert (overall.asr_worst.successes, overall.asr_worst.n) == (50, 60)
    assert overall.car.n == 50


def test_sampled_gives_pass_at_k_and_no_asr() -> None:
    made = result("p", 0.4, 8)
    overall = made.overall
    assert made.mode == "sampled"
    assert overall.asr == {}
    assert set(overall.pass_at["oro"]) == {"1", "8"}
    one, eight = overall.pass_at["oro"]["1"], overall.pass_at["oro"]["8"]
    wins = sum(row.success["oro"] for row in made.scores)
    solved = {row.problem_id for row in made.scores if row.success["oro"]}
    assert one.value == pytest.approx(wins / 480)
    assert eight.value == pytest.approx(len(solved) / 60)
    assert (one.n, one.samples, one.clusters) == (60, 480, 30)


@pytest.mark.parametrize(
    ("samples", "ks"), [(2, {"1", "2"}), (8, {"1", "8"}), (16, {"1", "8", "16"})]
)
def test_pass_at_8_is_told_wherever_8_were_sampled(samples: int, ks: set[str]) -> None:
    made = result("p", 0.4, samples)
    estimates = made.overall.pass_at["oro"]
    assert set(estimates) == ks
    ordered = [estimates[k].value or 0 for k in sorted(ks, key=int)]
    assert ordered == sorted(ordered)
    told = stage_summary(StageResult(name="p", sampled=made))
    assert told.pass_at_8 == (estimates["8"].value if samples >= 8 else None)


def test_pass_at_k_leaves_out_only_problems_with_fewer_scored_rollouts() -> None:
    scores = [score(p.problem_id, s, True) for p in PROBLEMS for s in range(8)]
    scores[3] = score(PROBLEMS[0].problem_id, 3, False, status="unscored")
    made = summarise(scores, PROBLEMS, name="p", samples=8, temperature=1.0, seed=0)
    assert {k: each.n for k, each in made.overall.pass_at["oro"].items()} == {"1": 60, "8": 59}
    assert made.overall.pass_at["oro"]["1"].samples == 479
    assert StageResult(name="p", sampled=made).pass_pair() is None, "no headroom between two sets"
    assert StageResult(name="p", sampled=result("p", 0.4, 8)).pass_pair() is not None
    assert made.overall.pass_at_1_worst is not None
    assert made.overall.pass_at_1_worst.value == pytest.approx(479 / 480)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from([None, True, False]), min_size=4, max_size=4), min_size=1))
def test_unscored_rollouts_counted_as_failures_are_a_lower_bound(
    outcomes: list[list[bool | None]],
) -> None:
    """It lay above pass@1 where a broken rollout took its problem's successes with it."""
    outcomes = outcomes[: len(PROBLEMS)]
    scores = [
        score(problem.problem_id, n, bool(good), status="unscored" if good is None else "scored")
        for problem, rows in zip(PROBLEMS, outcomes, strict=False)
        for n, good in enumerate(rows)
    ]
    ran = PROBLEMS[: len(outcomes)]
    made = summarise(scores, ran, name="p", samples=4, temperature=1.0, seed=0).overall
    one, worst = made.pass_at["oro"]["1"], made.pass_at_1_worst
    assert worst is not None
    assert worst.value is not None
    assert one.value is None or worst.value <= one.value + 1e-12


def test_copies_of_a_greedy_rollout_are_no_samples() -> None:
    with pytest.raises(InputError, match="copies of one"):
        summarise([], PROBLEMS, name="p", samples=8, temperature=0.0, seed=0)


def test_an_unknown_problem_is_refused() -> None:
    with pytest.raises(InputError, match="unknown problem"):
        greedy([score("elsewhere", 0, True)])


def test_order_of_rollouts_does_not_matter() -> None:
    scores = [score(p.problem_id, 0, p.kind == "shop") for p in PROBLEMS]
    assert canonical_json(greedy(scores)) == canonical_json(greedy(scores[::-1]))


def test_comparison_pairs_by_problem_and_corrects_intents_only() -> None:
    better = greedy([score(p.problem_id, 0, p.kind != "shop") for p in PROBLEMS], "sft")
    worse = greedy([score(p.problem_id, 0, p.kind == "voucher") for p in PROBLEMS[::-1]], "base")
    rows = compare_results(better, worse, PROBLEMS, clusters=CLUSTERS)
    assert [row.intent for row in rows] == ["overall", "product", "shop", "voucher"]
    assert (rows[0].table.only_a, rows[0].table.only_b, rows[0].n) == (20, 0, 60)
    assert rows[0].p_holm is None
    assert {row.family for row in rows[1:]} == {3}
    assert rows[1].p_holm == pytest.approx(3 * 2 * 0.5**20)


def test_a_sampled_run_is_not_compared_as_if_greedy() -> None:
    with pytest.raises(InputError, match="sampled"):
        compare_results(result("a", 0.4, 8), result("b", 0.4), PROBLEMS)


def test_asr_stands_with_an_interval_over_clusters_too() -> None:
    """Ten paraphrases of one problem are one observation: Wilson alone would not say so."""
    tens = {p.problem_id: f"c{n // 10}" for n, p in enumerate(PROBLEMS)}
    scores = [score(p.problem_id, 0, (n // 10) % 2 == 0) for n, p in enumerate(PROBLEMS)]
    made = summarise(scores, PROBLEMS, name="p", samples=1, temperature=0.0, seed=0, clusters=tens)
    plain, over = made.overall.asr["oro"], made.overall.asr_clustered["oro"]
    assert (over.value, over.n, over.clusters) == (plain.rate, 60, 6)
    assert over.high - over.low > 2 * (plain.high - plain.low)
    assert set(made.intents["shop"].asr_clustered) == {"oro", "strict"}
    assert result("p", 0.4, 8).overall.asr_clustered == {}


def test_what_was_not_run_is_counted() -> None:
    scores = [score(p.problem_id, 0, True) for p in PROBLEMS[:50]]
    assert greedy(scores).unrun == 10
    assert greedy([*scores, *(score(p.problem_id, 0, False) for p in PROBLEMS[50:])]).unrun == 0
