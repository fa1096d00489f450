"""The intervals are the ones of the literature, and no number comes without its n."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap, norm, ttest_1samp

from palio.evaluate.comparison import PairedTable, paired_difference
from palio.evaluate.statistics import cluster_mean, mean_pass_at_k, pass_at_k, wilson
from palio.records import InputError


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_holds_every_rate_that_the_score_test_keeps(c: int, n: int, level: float) -> None:
    c = min(c, n)
    result = wilson(c, n, level)
    assert result.n == n
    assert 0 <= result.low <= c / n <= result.high <= 1
    z = norm.ppf((1 + level) / 2)
    for bound in (result.low, result.high):
        if 1e-6 < bound < 1 - 1e-6:
            statistic = (c / n - bound) / math.sqrt(bound * (1 - bound) / n)
            assert abs(statistic) == pytest.approx(z, rel=1e-6)


def test_wilson_gives_the_papers_interval() -> None:
    result = wilson(32, 75)
    assert (round(result.low, 3), round(result.high, 3)) == (0.321, 0.539)


def test_wilson_of_nothing_claims_nothing() -> None:
    result = wilson(0, 0)
    assert (result.rate, result.low, result.high, result.n) == (None, 0.0, 1.0, 0)


@pytest.mark.parametrize(("c", "n"), [(-1, 5), (6, 5), (1, 0)])
def test_impossible_counts_are_refused(c: int, n: int) -> None:
    with pytest.raises(InputError):
        wilson(c, n)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
def test_pass_at_k_is_the_share_of_k_subsets_with_a_success(
    pair: tuple[int, int], data: st.DataObject
) -> None:
    n, c = pair
    k = data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_needs_k_rollouts() -> None:
    with pytest.raises(InputError, match="at least k rollouts"):
        pass_at_k(4, 2, 8)


def test_pass_at_1_is_the_success_rate_and_pass_at_n_the_solved_share() -> None:
    counts = [(8, 0), (8, 1), (8, 8), (8, 3)]
    one, eight = mean_pass_at_k(counts, 1), mean_pass_at_k(counts, 8)
    assert one.value == pytest.approx(12 / 32)
    assert eight.value == pytest.approx(3 / 4)
    assert (one.n, one.samples, eight.n, eight.samples) == (4, 32, 4, 32)


def test_bootstrap_agrees_with_scipy_when_each_problem_stands_alone() -> None:
    values = np.random.default_rng(5).beta(1, 3, size=60)
    ours = cluster_mean(values.tolist(), seed=1, resamples=20_000)
    theirs = bootstrap(
        (values,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.004)
    assert ours.high == pytest.approx(theirs.high, abs=0.004)


def test_copies_in_a_cluster_do_not_narrow_the_interval() -> None:
    values = [float(v) for v in np.random.default_rng(3).random(40) < 0.4]
    labels = [f"c{i}" for i in range(40)]
    alone = cluster_mean(values, labels, seed=1)
    copied = cluster_mean(values * 5, labels * 5, seed=1)
    naive = cluster_mean(values * 5, seed=1)
    assert (copied.low, copied.high) == (alone.low, alone.high)
    assert (copied.n, copied.clusters) == (200, 40)
    assert naive.high - naive.low < 0.6 * (copied.high - copied.low)


SOME = [f"cluster {number}" for number in range(40)]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcdef")), max_size=30)
    | st.lists(st.tuples(st.floats(0, 1), st.sampled_from(SOME)), min_size=60, max_size=99),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_bootstrap_is_seeded_bounded_and_free_of_row_order(
    rows: list[tuple[float, str]], seed: int
) -> None:
    values, labels = [v for v, _ in rows], [c for _, c in rows]
    first = cluster_mean(values, labels, seed=seed, resamples=200)
    again = cluster_mean(values[::-1], labels[::-1], seed=seed, resamples=200)
    assert first.low == pytest.approx(again.low)
    assert 0 - 1e-12 <= first.low <= first.high <= 1 + 1e-12
    if first.value is not None:
        assert first.low <= first.value + 1e-12
        assert first.value <= first.high + 1e-12


@pytest.mark.parametrize("clusters", [2, 3, 5, 10, 20])
@pytest.mark.parametrize("shape", [(2.0, 2.0), (0.4, 0.6)])
def test_few_clusters_are_covered_as_often_as_is_claimed(
    clusters: int, shape: tuple[float, float]
) -> None:
    """A bootstrap of two clusters has two means to draw from: it covered 70 % and 78 %."""
    rng = np.random.default_rng(clusters)
    labels = [f"c{place // 5}" for place in range(5 * clusters)]
    truth, held = shape[0] / sum(shape), 0
    for _ in range(400):
        rates = np.repeat(rng.beta(*shape, size=clusters), 5)
        told = cluster_mean((rng.random(len(rates)) < rates).astype(float).tolist(), labels)
        held += told.low <= truth <= told.high
    assert held / 400 >= 0.93


@pytest.mark.parametrize("clusters", [3, 10, 40])
def test_a_cluster_that_has_half_of_the_problems_is_no_certainty(clusters: int) -> None:
    """It draws the mean to itself, so that its own residual is small: 24 % of 10 were covered."""
    rng = np.random.default_rng(clusters)
    sizes = np.array([clusters - 1, *[1] * (clusters - 1)])
    labels = [f"c{place}" for place, size in enumerate(sizes) for _ in range(size)]
    held = 0
    for _ in range(300):
        rates = np.repeat(rng.beta(1.0, 1.0, size=clusters), sizes)
        told = cluster_mean((rng.random(len(rates)) < rates).astype(float).tolist(), labels)
        held += told.low <= 0.5 <= told.high
    assert held / 300 >= 0.93


def test_few_clusters_of_differences_are_students_interval() -> None:
    """Far from the bounds Wilson's correction is small, and the rest is Student's t."""
    means = np.random.default_rng(0).normal(0.0, 0.02, size=8)
    told = cluster_mean(means.tolist(), bounds=(-1.0, 1.0))
    plain = ttest_1samp(means, 0.0).confidence_interval(0.95)
    assert told.low == pytest.approx(plain.low, abs=1e-4)
    assert told.high == pytest.approx(plain.high, abs=1e-4)


def test_few_clusters_weigh_by_their_problems_as_the_mean_does() -> None:
    values, labels = [1.0] * 9 + [0.0, 1.0, 0.0], [*"aaaaaaaaa", "b", "c", "d"]
    told = cluster_mean(values, labels)
    assert told.value == pytest.approx(10 / 12)
    assert told.low < 10 / 12 < told.high <= 1.0
    assert told.low < 0.35, "four clusters, two of them at nothing"


def test_no_success_at_all_still_has_a_width() -> None:
    result = mean_pass_at_k([(8, 0)] * 60, 1)
    assert (result.value, result.low) == (0.0, 0.0)
    assert result.high == pytest.approx(wilson(0, 60).high)
    assert "wilson" in result.method


def test_bad_values_are_refused() -> None:
    with pytest.raises(InputError, match="not finite"):
        cluster_mean([0.5, math.nan])
    with pytest.raises(InputError, match="outside"):
        cluster_mean([1.5])
    with pytest.raises(InputError, match="labels"):
        cluster_mean([0.5], ["a", "b"])


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1.0, 0.0, 1.0, 1.0], ["one"] * 4),
        ([1.0, 0.0] * 6, [f"c{i // 2}" for i in range(12)]),
    ],
    ids=["a single cluster", "clusters of one mean"],
)
def test_clusters_that_do_not_differ_are_no_certainty(
    values: list[float], labels: list[str]
) -> None:
    made = cluster_mean(values, labels)
    clusters = len(set(labels))
    assert made.value == pytest.approx(sum(values) / len(values))
    assert made.clusters == clusters
    assert made.high - made.low == pytest.approx(wilson(0, clusters).high)
    gap = cluster_mean([2 * value - 1 for value in values], labels, bounds=(-1, 1))
    assert (gap.low, gap.high) == pytest.approx((2 * made.low - 1, 2 * made.high - 1))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), min_size=1, max_size=24))
@settings(max_examples=60, deadline=None)
def test_no_interval_is_a_point(rows: list[tuple[bool, str]]) -> None:
    made = cluster_mean([float(v) for v, _ in rows], [c for _, c in rows], resamples=300)
    assert made.high - made.low > 0.01


@given(st.integers(1, 200))
def test_where_all_is_alike_the_intervals_are_wilsons_and_tangos(n: int) -> None:
    """Three ways to say the same must not differ."""
    for successes in (0, n):
        made = cluster_mean([float(successes == n)] * n)
        alone = wilson(successes, n)
        assert (made.low, made.high) == pytest.approx((alone.low, alone.high), abs=1e-9)
    same = paired_difference(PairedTable(both=n, only_a=0, only_b=0, neither=0))
    gap = cluster_mean([0.0] * n, bounds=(-1, 1))
    assert (gap.low, gap.high) == pytest.approx((same.low, same.high), abs=1e-6)


def test_expected_rates_that_are_all_alike_are_known_better_than_outcomes() -> None:
    """A floor of one in five on every problem varies less than a policy that solves one in five."""
    expected = cluster_mean([0.2] * 150)
    assert expected.low < 0.2 < expected.high
    assert expected.high - expected.low < (wilson(30, 150).high - wilson(30, 150).low) / 4
