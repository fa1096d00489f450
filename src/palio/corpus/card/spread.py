"""A distribution in a few numbers that keep what a mean hides, and entropies in plain units."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from palio.records import Record

BINS = 24
QUANTILES = {"p10": 10, "median": 50, "p90": 90, "p99": 99}


class Spread(Record, frozen=True, omit_defaults=False):
    """A distribution of n numbers.

    Attributes:
        total: their sum.
        mean: 0 when n is 0, as all others.
        p10, median, p90, p99: quantiles, linear between neighbours.
        edges: edges of the histogram, one more than `counts`: a bin a number for a few whole
            numbers, equal steps of the logarithm where the largest is over 20 times the least,
            else equal steps.
        counts: numbers in each bin; they add up to n.
    """

    n: int = 0
    total: float = 0
    mean: float = 0
    least: float = 0
    p10: float = 0
    median: float = 0
    p90: float = 0
    p99: float = 0
    most: float = 0
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def spread(values: Iterable[float]) -> Spread:
    """Measure non-negative numbers."""
    row = np.sort(np.fromiter(values, np.float64))
    if not len(row):
        return Spread()
    counts, edges = np.histogram(row, _edges(float(row[0]), float(row[-1])))
    quantiles = dict(zip(QUANTILES, np.percentile(row, list(QUANTILES.values())), strict=True))
    return Spread(
        n=len(row),
        total=float(math.fsum(row)),
        mean=float(math.fsum(row) / len(row)),
        least=float(row[0]),
        most=float(row[-1]),
        edges=tuple(round(float(edge), 3) for edge in edges),
        counts=tuple(int(count) for count in counts),
        **{name: float(value) for name, value in quantiles.items()},
    )


def _edges(least: float, most: float) -> npt.NDArray[np.float64]:
    whole = float(least).is_integer() and float(most).is_integer()
    if whole and most - least < BINS:
        return np.arange(least - 0.5, most + 1)  # one bin a number
    if least > 0 and most / least > 20:
        edges = np.geomspace(least, most, BINS + 1)
    else:
        edges = np.linspace(least, most if most > least else least + 1, BINS + 1)
    edges[0], edges[-1] = least, max(most, edges[-1])  # rounding must put nothing outside
    return edges


def entropy(counts: Iterable[int]) -> float:
    """Shannon entropy in bits of how often each kind occurs; 0 for one kind or none."""
    held = [count for count in counts if count > 0]
    total = sum(held)
    # `0.0 -` and not unary minus: one kind has entropy 0, not -0
    return 0.0 - sum(n / total * math.log2(n / total) for n in held) if total else 0.0


def effective(counts: Iterable[int]) -> float:
    """How many equally frequent kinds have the same entropy: 2 ** entropy; 0 without any."""
    held = [count for count in counts if count > 0]
    return 2 ** entropy(held) if held else 0.0
