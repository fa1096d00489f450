"""A paired comparison equals brute force: likelihood maximised by hand, tables enumerated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, norm

from palio.evaluate.comparison import (
    PairedTable,
    compare,
    holm,
    mcnemar,
    paired_difference,
    paired_table,
    tango_score,
    with_holm,
)
from palio.records import InputError


def table(both: int, only_a: int, only_b: int, neither: int) -> PairedTable:
    return PairedTable(both=both, only_a=only_a, only_b=only_b, neither=neither)


TABLES = st.builds(table, *[st.integers(0, 30)] * 4).filter(lambda t: t.n > 0)


def score_by_brute_force(b: int, c: int, n: int, d: float) -> float:
    """The score statistic with the nuisance found by maximising the likelihood numerically."""

    def loss(q: float) -> float:
        cells = ((b, q + d), (c, q), (n - b - c, 1 - 2 * q - d))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in cells if k)

    low, high = max(0.0, -d), (1 - d) / 2
    best = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-11})
    q = min((low, high, float(best.x)), key=loss)
    return (b - c - n * d) / math.sqrt(n * (2 * q + d * (1 - d)))


@given(TABLES, st.floats(-0.95, 0.95).filter(lambda d: abs(d) > 1e-4))
@settings(max_examples=150, deadline=None)
def test_tango_statistic_uses_the_restricted_maximum_likelihood(t: PairedTable, d: float) -> None:
    expected = score_by_brute_force(t.only_a, t.only_b, t.n, d)
    assert tango_score(t.only_a, t.only_b, t.n, d) == pytest.approx(expected, abs=2e-3, rel=2e-3)


@given(TABLES)
def test_interval_ends_where_the_score_test_turns(t: PairedTable) -> None:
    result = paired_difference(t)
    assert result.n == t.n
    assert -1 <= result.low <= result.difference <= result.high <= 1
    for bound in (result.low, result.high):
        if -0.999 < bound < 0.999:
            statistic = tango_score(t.only_a, t.only_b, t.n, bound)
            assert abs(statistic) == pytest.approx(norm.ppf(0.975), rel=1e-4)


@given(TABLES)
def test_swapping_the_policies_mirrors_the_interval(t: PairedTable) -> None:
    forward = paired_difference(t)
    backward = paired_difference(table(t.both, t.only_b, t.only_a, t.neither))
    assert forward.low == pytest.approx(-backward.high, abs=1e-9)
    assert forward.high == pytest.approx(-backward.low, abs=1e-9)


def test_interval_keeps_its_coverage() -> None:
    rng = np.random.default_rng(11)
    cells = np.array([0.25, 0.12, 0.03, 0.60])
    draws = rng.multinomial(60, cells, size=600)
    inside = 0
    for row in draws.tolist():
        result = paired_difference(table(*row))
        inside += result.low <= 0.09 <= result.high
    assert 0.93 <= inside / 600 <= 0.98


@given(st.integers(0, 25), st.integers(0, 25))
def test_mcnemar_sums_the_tables_at_least_as_unlikely(b: int, c: int) -> None:
    chances = binom.pmf(np.arange(b + c + 1), b + c, 0.5)
    expected = chances[chances <= chances[b] * (1 + 1e-7)].sum()
    assert mcnemar(table(5, b, c, 5)).p_value == pytest.approx(min(1.0, expected), abs=1e-9)


def test_no_discordant_pair_is_no_evidence() -> None:
    result = mcnemar(table(10, 0, 0, 10))
    assert (result.p_value, result.discordant, result.n) == (1.0, 0, 20)
    assert paired_difference(table(10, 0, 0, 10)).high > 0.05


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_equals_its_definition(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for alpha in (0.01, 0.05, 0.2, 0.5):
        order = sorted(range(len(p_values)), key=lambda i: p_values[i])
        rejected = set()
        for rank, index in enumerate(order):
            if (len(p_values) - rank) * p_values[index] > alpha:
                break
            rejected.add(index)
        assert {i for i, p in enumerate(adjusted) if p <= alpha} == rejected


def test_comparison_carries_both_rates_the_interval_and_the_family() -> None:
    a, b = [True] * 30 + [False] * 20, [False] * 20 + [True] * 15 + [False] * 15
    first = compare(a, b, names=("sft", "first hit"), intent="shop", clusters=[str(i) for i in a])
    plain = compare(a, b, names=("sft", "first hit"), intent="product")
    corrected = with_holm([first, plain])
    assert first.n == 50
    assert (first.rate_a.successes, first.rate_b.successes) == (30, 15)
    assert first.difference.difference == pytest.approx(0.3)
    assert (first.clustered.clusters, plain.clustered.clusters) == (2, 50)
    assert corrected[0].family == 2
    assert corrected[0].p_holm == pytest.approx(2 * first.test.p_value)


def test_paired_needs_pairs() -> None:
    with pytest.raises(InputError, match="same n"):
        paired_table([True], [True, False])
