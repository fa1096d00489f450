"""Agreement of two readings in five ordered bins, each number with an interval over clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palio.evaluate.statistics import CONFIDENCE, Estimate, cluster_mean
from palio.records import Record
from palio.records.verdict import QUALITY_BINS

BINS = len(QUALITY_BINS)
RESAMPLES = 4_000

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


class _Draws(NamedTuple):
    seed: int
    resamples: int


class Agreement(Record, frozen=True, omit_defaults=False):
    """A judge against labels on n judged rows.

    Attributes:
        n: rows with a verdict; `unjudged` rows have none and are in no rate.
        exact: share of rows in the label's bin.
        within_one: share of rows at most one bin away.
        kappa: Cohen's kappa with quadratic weights (Cohen 1968), in [-1, 1]; None where one of
            the two readings is constant.
        balanced: mean over the labels' bins of the share that the judge put there.
        confusion: rows = label, columns = judge, in the order of `QUALITY_BINS`.
    """

    n: int
    unjudged: int
    exact: Estimate
    within_one: Estimate
    kappa: Estimate
    balanced: Estimate
    confusion: tuple[tuple[int, ...], ...]


def agreement(
    labels: Sequence[int],
    given: Sequence[int | None],
    clusters: Sequence[str],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Agreement:
    """Agreement of bins 0-4; None in `given` is unjudged.

    Args:
        labels: bin of each row.
        given: the judge's bin of each row.
        clusters: what each row depends on; whole clusters are resampled.
        seed: of the resampling.
        resamples: bootstrap draws.
    """
    judged = [(a, b, c) for a, b, c in zip(labels, given, clusters, strict=True) if b is not None]
    true = np.array([row[0] for row in judged], dtype=np.int64)
    said = np.array([row[1] for row in judged], dtype=np.int64)
    groups = [row[2] for row in judged]
    tables = _tables(true, said, groups)
    distance = np.abs(true - said)
    draw = _Draws(seed, resamples)
    return Agreement(
        n=len(judged),
        unjudged=len(labels) - len(judged),
        exact=cluster_mean(
            [float(d == 0) for d in distance], groups, seed=seed, resamples=resamples
        ),
        within_one=cluster_mean(
            [float(d <= 1) for d in distance], groups, seed=seed, resamples=resamples
        ),
        kappa=_bootstrapped(tables, quadratic_kappa, len(judged), (-1.0, 1.0), draw),
        balanced=_bootstrapped(tables, balanced_accuracy, len(judged), (0.0, 1.0), draw),
        confusion=tuple(tuple(int(cell) for cell in row) for row in confusion(true, said)),
    )


def confusion(labels: Sequence[int] | Counts, given: Sequence[int] | Counts) -> Counts:
    """5 x 5 counts: rows are labels, columns are what was given."""
    cells = BINS * np.asarray(labels, dtype=np.int64) + np.asarray(given, dtype=np.int64)
    return np.bincount(cells, minlength=BINS * BINS).reshape(BINS, BINS)


def quadratic_kappa(tables: NDArray[np.number]) -> Values:
    """1 - (weighted disagreement) / (that of independent readings), weights (i - j)^2.

    Args:
        tables: confusion counts, shape (..., 5, 5).

    Returns:
        shape (...); NaN where independent readings with these margins cannot disagree.
    """
    counts = np.asarray(tables, dtype=np.float64)
    place = np.arange(BINS, dtype=np.float64)
    weights = (place[:, None] - place[None, :]) ** 2
    total = counts.sum(axis=(-2, -1))
    rows, columns = counts.sum(axis=-1), counts.sum(axis=-2)
    seen = (weights * counts).sum(axis=(-2, -1)) * total
    chance = (weights * rows[..., :, None] * columns[..., None, :]).sum(axis=(-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Values = np.where(chance > 0, 1 - seen / chance, np.nan)
    return result


def balanced_accuracy(tables: NDArray[np.number]) -> Values:
    """Mean recall over the bins that labels have; shape (..., 5, 5) to (...), NaN without rows."""
    counts = np.asarray(tables, dtype=np.float64)
    rows = counts.sum(axis=-1)
    hits = np.diagonal(counts, axis1=-2, axis2=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        recalls = np.where(rows > 0, hits / rows, 0.0)
        result: Values = recalls.sum(axis=-1) / (rows > 0).sum(axis=-1)
    return result


def _tables(true: Counts, said: Counts, groups: Sequence[str]) -> NDArray[np.int64]:
    """Confusion of each cluster, in order of the sorted names; shape (clusters, 5, 5)."""
    names = sorted(set(groups))
    place = {name: number for number, name in enumerate(names)}
    tables = np.zeros((len(names), BINS, BINS), dtype=np.int64)
    rows = np.array([place[group] for group in groups], dtype=np.int64)
    np.add.at(tables, (rows, true, said), 1)
    return tables


def _bootstrapped(
    tables: NDArray[np.int64],
    statistic: Callable[[NDArray[np.number]], Values],
    n: int,
    bounds: tuple[float, float],
    how: _Draws,
) -> Estimate:
    """A statistic of the summed tables, with percentiles over draws of whole clusters."""
    value = float(statistic(tables.sum(axis=0))) if n else float("nan")
    low, high = bounds
    method = "none"
    if len(tables) > 1 and np.isfinite(value):
        rng = np.random.default_rng(how.seed)
        share = np.full(len(tables), 1 / len(tables))
        weights = rng.multinomial(len(tables), share, size=how.resamples)
        draws = statistic(np.tensordot(weights, tables, axes=1))
        draws = draws[np.isfinite(draws)]
        tail = (1 - CONFIDENCE) / 2
        low, high = (float(q) for q in np.quantile(draws, [tail, 1 - tail]))
        method = "cluster bootstrap, percentile"
        if high - low < 1e-9:  # draws that are all equal would claim certainty
            alike = cluster_mean([value] * len(tables), bounds=bounds)
            low, high, method = alike.low, alike.high, alike.method
    return Estimate(
        value=value if np.isfinite(value) else None,
        n=n,
        clusters=len(tables),
        samples=n,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        method=method,
    )
