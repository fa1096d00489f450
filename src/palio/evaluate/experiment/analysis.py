"""Runs become the answer that the plan asked for: per-seed differences, an interval over seeds.

Seeds are the sample: two arms of a seed share weights, vocabulary, order and problems, so their
difference is one observation; two that are known to start from different bases are no pair. The
interval is Student's t over those differences. McNemar's test stands within a run only, where
problems are the sample, and says nothing about other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from scipy import stats

from palio.evaluate.comparison import McNemar, holm, mcnemar, paired_table
from palio.evaluate.experiment.plan import Contrast, Plan
from palio.evaluate.experiment.runs import ArmRun
from palio.evaluate.statistics import CONFIDENCE
from palio.records import Record

POWER = 0.8
"""Probability with which the detectable effect would be found."""


class SeedDifference(Record, frozen=True, omit_defaults=False):
    """The difference under one seed, and McNemar's test within it (greedy outcomes only)."""

    seed: int
    difference: float
    test: McNemar | None


class Effect(Record, frozen=True, omit_defaults=False):
    """One contrast over all of its seeds.

    Attributes:
        measure: what differs, e.g. "asr" or "asr:shop".
        mean: of the differences, in rate points / 100; None without a seed.
        low, high: Student's t interval over seeds; None with one seed, which has no spread.
        p_value: of the t test that the mean is 0; None with one seed.
        p_holm: corrected over the plan's contrasts.
        detectable: effect that this many seeds with this spread find with 80 % power, two-sided
            5 %; None with one seed, and without any spread.
    """

    arm: str
    against: str
    measure: str
    seeds: tuple[SeedDifference, ...]
    mean: float | None
    low: float | None
    high: float | None
    p_value: float | None
    detectable: float | None
    p_holm: float | None = None


_STEPS = 2_000
LEAST_SEEDS = 3
"""From which on a difference may be called higher, lower or none."""
_ALIKE = 1e-9
"""Below it numbers are taken for the same. Equal differences of rates are rarely equal as floats
(0.7 - 0.6 is not 0.8 - 0.7); ones that differ do so by one problem of thousands at least."""


class ArmSummary(Record, frozen=True, omit_defaults=False):
    """One arm: the value of every seed, and over the seeds of all arms mean and t interval.

    Attributes:
        values: by seed, in the order of `seeds`.
        seeds: those that this arm has.
        mean: over the plan's whole seeds (`whole_seeds`), so that arms can be compared; over its
            own where there are none.
    """

    arm: str
    measure: str
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    mean: float | None
    low: float | None
    high: float | None


class PlanResult(Record, frozen=True, omit_defaults=False):
    """What a plan's runs say so far.

    Attributes:
        complete: whether there are as many whole seeds as the plan asks for.
        seeds: whole seeds: those that every arm and every contrast has.
        n: problems of the examination.
        sampled: of these, problems with samples; 0: greedy only.
        effects: contrasts under the primary measure, Holm-corrected together.
        intents: the same contrasts by kind; described, not tested.
    """

    plan: str
    complete: bool
    seeds: int
    n: int
    arms: tuple[ArmSummary, ...]
    effects: tuple[Effect, ...]
    intents: tuple[Effect, ...]
    sampled: int = 0


def analyse(plan: Plan, runs: Sequence[ArmRun]) -> PlanResult:
    """Everything that the plan asks of its runs; a partial set is analysed as far as it goes.

    Runs that say nothing under the plan's measure (`measured`) are left out.
    """
    runs = [run for run in runs if measured(run, plan.measure)]
    by_arm = {arm.name: {r.seed: r for r in runs if r.arm == arm.name} for arm in plan.arms}
    effects = [_effect(plan, contrast, by_arm, plan.measure) for contrast in plan.contrasts]
    whole = whole_seeds(by_arm.values(), effects)
    kinds = sorted({kind for run in runs for kind in run.n} - {"overall"})
    intents = [
        _effect(plan, contrast, by_arm, f"asr:{kind}")
        for contrast in plan.contrasts
        for kind in kinds
        if plan.measure != "exposed"
    ]
    return PlanResult(
        plan=plan.name,
        complete=len(whole) >= plan.seeds,
        seeds=len(whole),
        n=max((run.n["overall"] for run in runs), default=0),
        arms=tuple(_arm(name, plan, found, whole) for name, found in by_arm.items()),
        effects=_corrected(effects),
        intents=tuple(intents),
        sampled=max((run.sampled for run in runs), default=0),
    )


def whole_seeds(arms: Iterable[Iterable[int]], effects: Iterable[Effect]) -> set[int]:
    """The seeds that every arm has and in which every contrast is taken.

    Args:
        arms: of each its seeds.
        effects: of all contrasts.
    """
    held = [set(seeds) for seeds in arms]
    return set.intersection(*held, *({each.seed for each in effect.seeds} for effect in effects))


def apart(a: ArmRun, b: ArmRun) -> bool:
    """Whether two runs are known to start from different bases, so that they are no pair."""
    return bool(a.base and b.base) and a.base != b.base


def measured(run: ArmRun, measure: str) -> bool:
    """Whether a run has what the measure of a plan is computed from.

    An examination may have no problem of the clusters that a seed exposes, or none of the others.
    """
    if measure == "exposed":
        return {"exposed", "unexposed"} <= run.groups.keys()
    return not measure.startswith("pass@") or measure.removeprefix("pass@") in run.pass_at


def value_of(run: ArmRun, measure: str) -> float:
    """A run's value under a measure: asr, asr:KIND, pass@K, exposed, or the name of a group."""
    if measure.startswith("pass@"):
        return run.pass_at[measure.removeprefix("pass@")]
    if measure == "exposed":
        return run.rate("exposed") - run.rate("unexposed")
    return run.rate("overall" if measure == "asr" else measure.removeprefix("asr:"))


def _arm(name: str, plan: Plan, found: dict[int, ArmRun], whole: set[int]) -> ArmSummary:
    values = {seed: value_of(found[seed], plan.measure) for seed in sorted(found)}
    mean, low, high, _ = t_interval([values[seed] for seed in sorted(whole or found)])
    return ArmSummary(
        arm=name,
        measure=plan.measure,
        values=tuple(values.values()),
        seeds=tuple(values),
        mean=mean,
        low=low,
        high=high,
    )


def _effect(
    plan: Plan, contrast: Contrast, by_arm: dict[str, dict[int, ArmRun]], measure: str
) -> Effect:
    a, b = by_arm[contrast.arm], by_arm[contrast.against]
    if plan.measure == "exposed":  # the difference is within each run
        seeds = tuple(
            SeedDifference(seed=seed, difference=value_of(a[seed], measure), test=None)
            for seed in sorted(a)
        )
    else:
        seeds = tuple(
            SeedDifference(
                seed=seed,
                difference=value_of(a[seed], measure) - value_of(b[seed], measure),
                test=_within(a[seed], b[seed]) if measure == "asr" else None,
            )
            for seed in sorted(a.keys() & b.keys())
            if not apart(a[seed], b[seed])
        )
    differences = [each.difference for each in seeds]
    mean, low, high, p_value = t_interval(differences)
    return Effect(
        arm=contrast.arm,
        against=contrast.against,
        measure=measure,
        seeds=seeds,
        mean=mean,
        low=low,
        high=high,
        p_value=p_value,
        detectable=detectable(differences),
    )


def _within(a: ArmRun, b: ArmRun) -> McNemar | None:
    """McNemar's test of two runs on the same problems; None where the problems differ."""
    if a.problems != b.problems:
        return None
    return mcnemar(paired_table(a.outcomes(), b.outcomes()))


def _corrected(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Holm over all contrasts of the plan; one without a p value yet counts as 1, and gets none.

    Left out, it would make the others' correction smaller the less of the plan is run.
    """
    adjusted = holm([1.0 if effect.p_value is None else effect.p_value for effect in effects])
    return tuple(
        effect if effect.p_value is None else msgspec.structs.replace(effect, p_holm=p_holm)
        for effect, p_holm in zip(effects, adjusted, strict=True)
    )


def t_interval(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float | None, float | None, float | None, float | None]:
    """(mean, low, high, p of a mean of 0) by Student's t; only the mean where n < 2.

    Values that are all 0 are those of one run under two names, or of arms that differ in nothing:
    an interval of no width, and p 1. Others without any spread, as two seeds have by chance once in
    a while, tell nothing of what a third would do: only the mean.
    """
    if not values:
        return None, None, None, None
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    if error < _ALIKE:
        return (mean, mean, mean, 1.0) if abs(mean) < _ALIKE else (mean, None, None, None)
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, len(values) - 1))
    return mean, mean - half, mean + half, p_value


def detectable(differences: Sequence[float], power: float = POWER) -> float | None:
    """The mean difference that a two-sided t test at 5 % finds with `power`.

    None below 2 seeds, and where they have no spread: what a further one would add is not known.

    Power is the mean over the spread that a sample may show, in 2,000 equally likely steps: the
    noncentral t distribution of scipy gives no number for two seeds and large effects.
    """
    n = len(differences)
    if n < 2:
        return None
    spread = float(np.std(differences, ddof=1))
    if spread < _ALIKE:
        return None
    critical = float(stats.t.ppf(0.975, n - 1))
    steps = (np.arange(_STEPS) + 0.5) / _STEPS
    bound = critical * np.sqrt(stats.chi2.ppf(steps, n - 1) / (n - 1))

    def reached(effect: float) -> float:
        shift = effect / spread * math.sqrt(n)
        return float(np.mean(stats.norm.sf(bound - shift) + stats.norm.cdf(-bound - shift)))

    low, high = 0.0, spread
    while reached(high) < power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) < power else (low, middle)
    return high
