"""Flip rates with intervals, and how far judges agree with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from palio.evaluate.counterfactual.flips import Fork, ForkedRun
from palio.evaluate.counterfactual.planning import Arm
from palio.evaluate.counterfactual.ranks import RankCorrelation, rank_correlation
from palio.evaluate.statistics import Estimate, Proportion, cluster_mean, wilson
from palio.records import Record
from palio.records.verdict import QUALITY_BINS, JudgeId, ReasoningVerdict

BINS = QUALITY_BINS


class Flips(Record, frozen=True, omit_defaults=False):
    """Flip rates of some runs.

    Attributes:
        runs: forked runs.
        treatment: changes of a decisive datum that the decision followed; Wilson's interval.
        answer: those of them that ended in another recommendation.
        emitted: those of them that the model asked for itself, not its harness.
        cited: of treatments whose datum stands in the thinking.
        uncited: of those whose datum does not, made where a run cites no decisive datum.
        placebo: changes of a datum that nobody asked for; a reader's decision follows none.
        copy: renamed products that were recommended under their new id.
        per_run: mean over runs of a run's own treatment rate; problems are the units.
        net: mean over runs with both of treatment rate less placebo rate, in [-1, 1].
        kinds: kind of datum -> treatments.
    """

    runs: int
    treatment: Proportion
    answer: Proportion
    emitted: Proportion
    cited: Proportion
    uncited: Proportion
    placebo: Proportion
    copy: Proportion
    per_run: Estimate
    net: Estimate
    kinds: dict[str, Proportion]


class JudgeCheck(Record, frozen=True, omit_defaults=False):
    """One judge beside the measured flip rates.

    Attributes:
        n: runs that were both judged and forked.
        bins: the judge's value -> treatment flips of the runs that it gave it.
        own: the same, counting only flips that the model asked for.
        gross: its values against runs' treatment rates.
        emitted: its values against the rates of flips that the model asked for.
        cited: its values against the rates of cited data alone. Runs that cite nothing are asked
            about other kinds of data; this leaves them out.
        net: its values against treatment less placebo, on runs with both.
    """

    judge: JudgeId
    n: int
    bins: dict[str, Proportion]
    own: dict[str, Proportion]
    gross: RankCorrelation
    emitted: RankCorrelation
    cited: RankCorrelation
    net: RankCorrelation


class Counterfactual(Record, frozen=True, omit_defaults=False):
    """Everything that is reported.

    Attributes:
        unforkable: agent -> reason -> runs.
    """

    runs: int
    overall: Flips
    agents: dict[str, Flips]
    unforkable: dict[str, dict[str, int]]
    judges: tuple[JudgeCheck, ...]


def measure(
    runs: Sequence[ForkedRun],
    verdicts: Iterable[Mapping[str, ReasoningVerdict]] = (),
    *,
    seed: int = 0,
) -> Counterfactual:
    """Rates and correlations of forked runs.

    Args:
        runs: what `fork_runs` gave.
        verdicts: for each judge, trajectory id -> its verdict.
        seed: of the resampling.
    """
    forked = [run for run in runs if not run.unforkable]
    unforkable: dict[str, Counter[str]] = {}
    for run in runs:
        if run.unforkable:
            unforkable.setdefault(run.agent, Counter())[run.unforkable] += 1
    names = dict.fromkeys(run.agent for run in runs)
    return Counterfactual(
        runs=len(runs),
        overall=_flips(forked, seed),
        agents={name: _flips([r for r in forked if r.agent == name], seed) for name in names},
        unforkable={name: dict(sorted(found.items())) for name, found in unforkable.items()},
        judges=tuple(
            check for given in verdicts if (check := _check(forked, given, seed)) is not None
        ),
    )


def _rate(forks: Iterable[Fork]) -> Proportion:
    flips = [fork.flipped for fork in forks]
    return wilson(sum(flips), len(flips))


def _flips(runs: Sequence[ForkedRun], seed: int) -> Flips:
    def of(arm: Arm) -> list[Fork]:
        return [fork for run in runs for fork in run.forks if fork.arm == arm]

    treated = of("treatment")
    rates = [(run, rate) for run in runs if (rate := run.rate("treatment")) is not None]
    both = [(run, rate - _placebo(run)) for run, rate in rates if run.rate("placebo") is not None]
    return Flips(
        runs=len(runs),
        treatment=_rate(treated),
        answer=wilson(sum(fork.outcome == "answer" for fork in treated), len(treated)),
        emitted=wilson(sum(fork.emitted for fork in treated), len(treated)),
        cited=_rate(fork for fork in treated if fork.cited),
        uncited=_rate(fork for fork in treated if not fork.cited),
        placebo=_rate(of("placebo")),
        copy=_rate(of("copy")),
        per_run=cluster_mean(
            [rate for _, rate in rates], [run.problem_id for run, _ in rates], seed=seed
        ),
        net=cluster_mean(
            [gap for _, gap in both],
            [run.problem_id for run, _ in both],
            seed=seed,
            bounds=(-1.0, 1.0),
        ),
        kinds={
            kind: _rate(fork for fork in treated if fork.kind == kind)
            for kind in sorted({fork.kind for fork in treated})
        },
    )


def _placebo(run: ForkedRun) -> float:
    rate = run.rate("placebo")
    assert rate is not None
    return rate


def _check(
    runs: Sequence[ForkedRun], verdicts: Mapping[str, ReasoningVerdict], seed: int
) -> JudgeCheck | None:
    """A judge beside the runs that it judged; None when it judged none of them."""
    judged = [
        (run, verdict.quality, rate)
        for run in runs
        if (verdict := verdicts.get(run.trajectory_id)) is not None
        and verdict.quality is not None
        and (rate := run.rate("treatment")) is not None
    ]
    if not judged:
        return None
    both = [(run, given, rate - _placebo(run)) for run, given, rate in judged if _paired(run)]
    held = {
        f"{value:g}": [
            fork
            for run, given, _ in judged
            if given == value
            for fork in run.forks
            if fork.arm == "treatment"
        ]
        for value in BINS
    }
    return JudgeCheck(
        judge=verdicts[judged[0][0].trajectory_id].judge,
        n=len(judged),
        bins={name: _rate(forks) for name, forks in held.items()},
        own={
            name: wilson(sum(fork.emitted for fork in forks), len(forks))
            for name, forks in held.items()
        },
        gross=_correlated(judged, seed),
        emitted=_correlated(
            [(run, given, run.rate("treatment", emitted=True) or 0.0) for run, given, _ in judged],
            seed,
        ),
        cited=_correlated(
            [(run, given, rate) for run, given, _ in judged if (rate := _cited(run)) is not None],
            seed,
        ),
        net=_correlated(both, seed),
    )


def _cited(run: ForkedRun) -> float | None:
    """Share of a run's changes of cited data that flipped; None when it has none."""
    flips = [fork.flipped for fork in run.forks if fork.arm == "treatment" and fork.cited]
    return sum(flips) / len(flips) if flips else None


def _paired(run: ForkedRun) -> bool:
    return run.rate("placebo") is not None


def _correlated(rows: Sequence[tuple[ForkedRun, float, float]], seed: int) -> RankCorrelation:
    return rank_correlation(
        [given for _, given, _ in rows],
        [rate for _, _, rate in rows],
        [run.problem_id for run, _, _ in rows],
        [run.agent for run, _, _ in rows],
        seed=seed,
    )
