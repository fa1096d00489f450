"""Rank correlation of a judge's bins with measured flip rates, with intervals over problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

from palio.evaluate.statistics import CONFIDENCE, Estimate, cluster_mean
from palio.records import Record

RESAMPLES = 1_000
Array = NDArray[np.float64]


class RankCorrelation(Record, frozen=True, omit_defaults=False):
    """How two rankings of the same runs go together.

    Attributes:
        spearman: Pearson's correlation of mid-ranks (Spearman 1904), in [-1, 1].
        kendall: tau-b, which corrects for ties (Kendall 1945), in [-1, 1].
        within: Spearman's with both rankings taken about each agent's mean: what is left when
            knowing the agent is worth nothing; None where a judge gives every agent one bin.
    """

    spearman: Estimate
    kendall: Estimate
    within: Estimate


def rank_correlation(
    one: Sequence[float],
    other: Sequence[float],
    clusters: Sequence[str],
    groups: Sequence[str],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> RankCorrelation:
    """Correlations of two readings of the same rows; percentile bootstrap over whole clusters.

    Args:
        one: a reading, one number a row.
        other: another reading of the same rows.
        clusters: what rows depend on; whole clusters are drawn.
        groups: the agent of each row.
        seed: of the resampling.
        resamples: bootstrap draws.
    """
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    _, group = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    rows = _rows_of(clusters)
    rng = np.random.default_rng(seed)
    draws = [
        np.concatenate([rows[pick] for pick in rng.integers(0, len(rows), len(rows))])
        for _ in range(resamples if len(rows) > 1 else 0)
    ]

    def estimate(statistic: Callable[[Array, Array, NDArray[np.intp]], float]) -> Estimate:
        value = statistic(a, b, group) if len(a) else math.nan
        found = [statistic(a[pick], b[pick], group[pick]) for pick in draws]
        return _estimate(value, [each for each in found if math.isfinite(each)], len(a), len(rows))

    return RankCorrelation(
        spearman=estimate(_spearman), kendall=estimate(_kendall), within=estimate(_within)
    )


def _rows_of(clusters: Sequence[str]) -> list[NDArray[np.intp]]:
    labels, codes = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    return [np.flatnonzero(codes == place) for place in range(len(labels))]


def _pearson(one: Array, other: Array) -> float:
    a, b = one - one.mean(), other - other.mean()
    size = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
    return float((a * b).sum()) / size if size > 1e-9 else math.nan


def _spearman(one: Array, other: Array, group: NDArray[np.intp]) -> float:
    del group
    return _pearson(rankdata(one), rankdata(other))


def _kendall(one: Array, other: Array, group: NDArray[np.intp]) -> float:
    del group
    if one.min() == one.max() or other.min() == other.max():
        return math.nan
    return float(kendalltau(one, other).statistic)


def _within(one: Array, other: Array, group: NDArray[np.intp]) -> float:
    return _pearson(_about(rankdata(one), group), _about(rankdata(other), group))


def _about(values: Array, group: NDArray[np.intp]) -> Array:
    """Values less their group's mean."""
    counts = np.maximum(np.bincount(group), 1)
    found: Array = values - (np.bincount(group, values) / counts)[group]
    return found


def _estimate(value: float, draws: list[float], n: int, clusters: int) -> Estimate:
    known = math.isfinite(value)
    low, high, method = -1.0, 1.0, "none"
    if known and len(draws) > 1:
        tail = (1 - CONFIDENCE) / 2
        low, high = (float(each) for each in np.quantile(draws, [tail, 1 - tail]))
        method = "cluster bootstrap, percentile"
        if high - low < 1e-9:  # draws that are all equal would claim certainty
            alike = cluster_mean([value] * clusters, bounds=(-1.0, 1.0))
            low, high, method = alike.low, alike.high, alike.method
    return Estimate(
        value=value if known else None,
        n=n,
        clusters=clusters,
        samples=n,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        method=method,
    )
