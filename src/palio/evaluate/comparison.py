"""Two policies on the same problems: paired difference, interval, exact test, corrected family."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from palio.broker.pin import ModelPin
from palio.evaluate.statistics import CONFIDENCE, Estimate, Proportion, cluster_mean, wilson
from palio.records.base import Record
from palio.records.faults import InputError


class PairedTable(Record, frozen=True, omit_defaults=False):
    """The 2 x 2 table of two yes/no outcomes on the same n problems."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        """Problems in the table."""
        return self.both + self.only_a + self.only_b + self.neither


class PairedDifference(Record, frozen=True, omit_defaults=False):
    """Rate of a minus rate of b on the same n problems, in [-1, 1]; None when n is 0."""

    difference: float | None
    n: int
    low: float
    high: float
    confidence: float
    method: str


class McNemar(Record, frozen=True, omit_defaults=False):
    """Exact two-sided test of equal rates; only the `discordant` of n pairs carry information."""

    n: int
    only_a: int
    only_b: int
    discordant: int
    p_value: float


class Comparison(Record, frozen=True, omit_defaults=False):
    """Policy a against policy b on one set of problems.

    Attributes:
        intent: the subset of problems, or "overall".
        clustered: the same difference with an interval over leak clusters.
        p_holm: `test.p_value` corrected for the `family` tests it was reported with; None until
            `with_holm` was applied.
        model_a, model_b: which weights each policy had; None for programs and floors, and where
            its folder does not say.
    """

    a: str
    b: str
    intent: str
    profile: str
    table: PairedTable
    rate_a: Proportion
    rate_b: Proportion
    difference: PairedDifference
    clustered: Estimate
    test: McNemar
    p_holm: float | None = None
    family: int = 1
    model_a: ModelPin | None = None
    model_b: ModelPin | None = None

    @property
    def n(self) -> int:
        """Problems that both policies were scored on."""
        return self.table.n


def paired_table(a: Sequence[bool], b: Sequence[bool]) -> PairedTable:
    """Cross-tabulate two outcomes that stand in the same order of problems."""
    if len(a) != len(b):
        raise InputError(f"{len(a)} outcomes against {len(b)}: a paired table needs the same n")
    pairs = list(zip(a, b, strict=True))
    return PairedTable(
        both=sum(x and y for x, y in pairs),
        only_a=sum(x and not y for x, y in pairs),
        only_b=sum(y and not x for x, y in pairs),
        neither=sum(not x and not y for x, y in pairs),
    )


def mcnemar(table: PairedTable) -> McNemar:
    """McNemar's exact test: the discordant pairs are a fair coin under equal rates."""
    discordant = table.only_a + table.only_b
    p_value = binomtest(table.only_a, discordant, 0.5).pvalue if discordant else 1.0
    return McNemar(
        n=table.n,
        only_a=table.only_a,
        only_b=table.only_b,
        discordant=discordant,
        p_value=min(1.0, float(p_value)),
    )


def paired_difference(table: PairedTable, confidence: float = CONFIDENCE) -> PairedDifference:
    """Difference of paired proportions with Tango's score interval.

    The interval holds every d that the score test does not reject (Tango 1998, Statistics in
    Medicine 17, 891-908). Unlike Wald's it keeps its coverage with few or no discordant pairs, and
    it excludes 0 exactly when McNemar's score statistic is significant.
    """
    n = table.n
    if n == 0:
        return PairedDifference(
            difference=None, n=0, low=-1.0, high=1.0, confidence=confidence, method="tango"
        )
    estimate = (table.only_a - table.only_b) / n
    z = float(norm.ppf((1 + confidence) / 2))
    b, c = table.only_a, table.only_b
    low = -1.0 if b - c == -n else _crossing(b, c, n, z, -1.0, estimate)
    high = 1.0 if b - c == n else _crossing(b, c, n, -z, estimate, 1.0)
    return PairedDifference(
        difference=estimate, n=n, low=low, high=high, confidence=confidence, method="tango"
    )


def tango_score(only_a: int, only_b: int, n: int, difference: float) -> float:
    """Tango's score statistic of the hypothesis rate_a - rate_b = `difference`.

    The nuisance q, the probability of "only b", is its maximum likelihood value under the
    hypothesis: the larger root of 2n q^2 + B q + C = 0 (Tango 1998, equation 4).
    """
    linear = -only_a - only_b + (2 * n - only_a + only_b) * difference
    constant = -only_b * difference * (1 - difference)
    root = np.sqrt(max(0.0, linear**2 - 8 * n * constant))
    q = max(0.0, -difference, (root - linear) / (4 * n))
    variance = n * (2 * q + difference * (1 - difference))
    gap = only_a - only_b - n * difference
    if variance <= 0:
        return 0.0 if gap == 0 else float(np.copysign(np.inf, gap))
    return float(gap / np.sqrt(variance))


def _crossing(b: int, c: int, n: int, target: float, left: float, right: float) -> float:
    """Where the falling score statistic equals `target`, within [left, right]."""
    edge = 1e-12

    def height(difference: float) -> float:
        return float(np.clip(tango_score(b, c, n, difference), -1e6, 1e6)) - target

    left, right = max(left, -1 + edge), min(right, 1 - edge)
    if height(left) <= 0:
        return left
    if height(right) >= 0:
        return right
    return float(brentq(height, left, right, xtol=1e-12))


def compare(
    a: Sequence[bool],
    b: Sequence[bool],
    *,
    names: tuple[str, str],
    intent: str = "overall",
    profile: str = "oro",
    clusters: Sequence[str] | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Everything there is to say about two success vectors in the same order of problems."""
    table = paired_table(a, b)
    gaps = [float(x) - float(y) for x, y in zip(a, b, strict=True)]
    return Comparison(
        a=names[0],
        b=names[1],
        intent=intent,
        profile=profile,
        table=table,
        rate_a=wilson(table.both + table.only_a, table.n, confidence),
        rate_b=wilson(table.both + table.only_b, table.n, confidence),
        difference=paired_difference(table, confidence),
        clustered=cluster_mean(gaps, clusters, seed=seed, confidence=confidence, bounds=(-1, 1)),
        test=mcnemar(table),
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p values (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return tuple(adjusted)


def with_holm(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """The comparisons with Holm-corrected p values; all of them form one family."""
    adjusted = holm([comparison.test.p_value for comparison in comparisons])
    return tuple(
        msgspec.structs.replace(comparison, p_holm=p_value, family=len(comparisons))
        for comparison, p_value in zip(comparisons, adjusted, strict=True)
    )
