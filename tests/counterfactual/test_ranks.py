"""Rank correlations: their ends, ties, constants, and what is left within agents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from palio.evaluate.counterfactual import rank_correlation

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=6, max_size=30)


@given(pairs=PAIRS)
def test_they_are_scipys_and_do_not_change_with_monotone_maps(pairs: list[tuple[int, int]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    rows = [str(place) for place in range(len(pairs))]
    found = rank_correlation(one, other, rows, ["x"] * len(pairs), resamples=5)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found.spearman.value is None
        assert found.kendall.value is None
        return
    assert found.spearman.value == pytest.approx(spearmanr(one, other).statistic)
    assert found.kendall.value == pytest.approx(kendalltau(one, other).statistic)
    mapped = rank_correlation([a**3 for a in one], other, rows, ["x"] * len(pairs), resamples=5)
    assert mapped.spearman.value == pytest.approx(found.spearman.value)
    backwards = rank_correlation([-a for a in one], other, rows, ["x"] * len(pairs), resamples=5)
    assert backwards.kendall.value == pytest.approx(-(found.kendall.value or 0.0))


def test_what_only_tells_agents_apart_is_worth_nothing_within_them() -> None:
    quality = [0.3] * 20 + [0.9] * 20
    flips = [0.0, 0.5] * 10 + [0.5, 1.0] * 10
    groups = ["a"] * 20 + ["b"] * 20
    rows = [str(place % 20) for place in range(40)]
    found = rank_correlation(quality, flips, rows, groups)
    assert (found.spearman.value or 0) > 0.5
    assert found.within.value is None
    assert found.spearman.clusters == 20


def test_equal_seeds_give_equal_intervals_and_more_rows_narrower_ones() -> None:
    one, other = [0.1, 0.5, 0.9, 0.5] * 5, [0.0, 0.5, 1.0, 1.0] * 5
    rows, groups = [str(place) for place in range(20)], ["a"] * 20
    found = rank_correlation(one, other, rows, groups, seed=4)
    assert found == rank_correlation(one, other, rows, groups, seed=4)
    many = [str(place) for place in range(80)]
    wide = rank_correlation(one * 4, other * 4, many, ["a"] * 80, seed=4)
    assert wide.spearman.high - wide.spearman.low < found.spearman.high - found.spearman.low


def test_perfect_agreement_of_a_few_rows_is_no_certainty() -> None:
    rows = [str(place) for place in range(6)]
    found = rank_correlation([0.1] * 3 + [0.9] * 3, [0.0] * 3 + [1.0] * 3, rows, ["a"] * 6)
    for each in (found.spearman, found.kendall, found.within):
        assert each.value == pytest.approx(1.0)
        assert each.low < 0.5
        assert each.high == pytest.approx(1.0)
