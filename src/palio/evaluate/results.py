"""From scored rollouts to rates by intent: greedy ASR and sampled pass@k never share a field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from palio.broker.pin import ModelPin
from palio.evaluate.behaviour import Behaviour
from palio.evaluate.faults import FaultCount, count_faults
from palio.evaluate.statistics import (
    Estimate,
    Proportion,
    cluster_mean,
    mean_pass_at_k,
    wilson,
)
from palio.records import KINDS, Fault, InputError, Problem, Profile, Record

OVERALL = "overall"
Mode = Literal["greedy", "sampled"]


class RolloutScore(Record, frozen=True):
    """One rollout in numbers.

    Attributes:
        success: strict success by profile; False when unscored.
        rule: mean rule score under `oro`, in [0, 1].
        status: "unscored" when infrastructure failed; it then leaves every denominator.
        fault: what failed and who is to blame, of an unscored rollout.
    """

    problem_id: str
    sample: int
    attempt: int
    trajectory_id: str
    status: Literal["scored", "unscored"]
    success: dict[str, bool]
    rule: float
    behaviour: Behaviour
    seconds: float = 0.0
    fault: Fault | None = None


class Rate(Record, frozen=True, omit_defaults=False):
    """A rate ready to be shown: value in [0, 1], n problems, interval, and how it was made."""

    value: float | None
    n: int
    low: float
    high: float
    method: str


def rate_of(number: Proportion | Estimate) -> Rate:
    """The common view of a proportion and of a clustered mean."""
    return Rate(
        value=number.rate if isinstance(number, Proportion) else number.value,
        n=number.n,
        low=number.low,
        high=number.high,
        method=number.method,
    )


class Distribution(Record, frozen=True, omit_defaults=False):
    """Description of n values; it infers nothing, so it has no interval."""

    n: int
    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None


class GroupResult(Record, frozen=True, omit_defaults=False):
    """One intent, one difficulty, or all problems.

    Attributes:
        problems: problems in the group, scored or not.
        unscored_rollouts: rollouts that infrastructure broke, out of `rollouts`.
        asr: greedy success rate by profile, problems as independent trials (Wilson); empty for
            sampled runs.
        asr_clustered: the same rates with leak clusters as the units; empty for sampled runs.
        asr_worst: the `oro` rate with unscored problems counted as failures.
        pass_at: profile -> k -> unbiased pass@k over the problems with k scored rollouts; empty for
            greedy runs. Where rollouts are unscored the n of two k may differ.
        pass_at_1_worst: `oro` pass@1 with unscored rollouts counted as failures.
        car: mean rule score under `oro` (cumulative average relevance of ShoppingBench).
        valid_turns: mean over problems of the share of turns whose calls are all well-formed.
        refused_calls: mean over problems of the share of calls that a tool refused.
        inventing: share of rollouts that named a product id which nothing had shown them.
        invented_ids: such ids in total.
        timed_out: scored rollouts that the wall clock stopped; they are failures in every rate.
    """

    group: str
    problems: int
    rollouts: int
    unscored_rollouts: int
    asr: dict[str, Proportion]
    asr_worst: Proportion | None
    pass_at: dict[str, dict[str, Estimate]]
    pass_at_1_worst: Estimate | None
    car: Estimate
    valid_turns: Estimate
    refused_calls: Estimate
    inventing: Estimate
    invented_ids: int
    turns: Distribution
    completion_tokens: Distribution
    asr_clustered: dict[str, Estimate] = {}
    timed_out: int = 0


class EvalResult(Record, frozen=True):
    """One policy on one set of problems, decoded in one way.

    Attributes:
        name: what tables call it, e.g. "after SFT".
        mode: "greedy" (one rollout at temperature 0) or "sampled".
        samples: rollouts a problem.
        intents: "overall" first, then each intent present.
        difficulties: the same by difficulty, empty when problems name none.
        scores: every rollout, ordered by problem, then sample.
        model: which weights answered; None for programs, and where nobody kept it.
    """

    name: str
    mode: Mode
    samples: int
    temperature: float
    seed: int
    profiles: tuple[Profile, ...]
    encoder: str
    intents: dict[str, GroupResult]
    difficulties: dict[str, GroupResult]
    scores: tuple[RolloutScore, ...]
    seconds: float = 0.0
    model: ModelPin | None = None

    @property
    def faults(self) -> tuple[FaultCount, ...]:
        """What broke the unscored rollouts, most frequent first."""
        return count_faults(row.fault for row in self.scores if row.status == "unscored")

    @property
    def overall(self) -> GroupResult:
        """The result on all problems."""
        return self.intents[OVERALL]

    @property
    def unrun(self) -> int:
        """Rollouts that were asked for and were not made yet; 0 of a finished evaluation."""
        return self.overall.problems * self.samples - self.overall.rollouts


def summarise(
    scores: Sequence[RolloutScore],
    problems: Sequence[Problem],
    *,
    name: str,
    samples: int,
    temperature: float,
    seed: int,
    profiles: tuple[Profile, ...] = ("oro", "strict"),
    ks: tuple[int, ...] = (),
    clusters: Mapping[str, str] | None = None,
    encoder: str = "",
    seconds: float = 0.0,
) -> EvalResult:
    """Aggregate rollouts by intent and difficulty.

    Args:
        scores: rollouts in any order, at most one a problem and sample.
        problems: every problem of the run; one without a rollout counts in `problems` only.
        name: what tables call the policy.
        samples: rollouts that were asked for, a problem.
        temperature: 0 makes the run greedy.
        seed: of the run, and of the bootstrap.
        profiles: the profiles that the rollouts were scored under.
        ks: the k of each pass@k; default 1, 8 (if so many), `samples`. Greedy runs have none.
        clusters: problem id -> leak cluster, the intervals' unit; None: each problem is its own.
        encoder: id of the title similarity.
        seconds: wall clock of the run.

    Raises:
        InputError: a rollout names an unknown problem, or greedy has more than one sample.
    """
    mode: Mode = "greedy" if temperature == 0 else "sampled"
    if mode == "greedy" and samples != 1:
        raise InputError(
            f"{samples} greedy samples a problem are {samples} copies of one",
            remedy="set a temperature above 0, or ask for one sample",
        )
    ks = () if mode == "greedy" else ks or _usual_ks(samples)
    by_problem = _by_problem(scores, problems, name)

    def result(group: str, chosen: Sequence[Problem]) -> GroupResult:
        ids = [problem.problem_id for problem in chosen]
        labels = [(clusters or {}).get(problem_id, problem_id) for problem_id in ids]
        rows = [by_problem[problem_id] for problem_id in ids]
        return _group(group, rows, labels, profiles=profiles, ks=ks, samples=samples, seed=seed)

    return EvalResult(
        name=name,
        mode=mode,
        samples=samples,
        temperature=temperature,
        seed=seed,
        profiles=profiles,
        encoder=encoder,
        intents=_split(problems, lambda problem: problem.kind, KINDS, result),
        difficulties=_by_difficulty(problems, result),
        scores=tuple(row for rows in by_problem.values() for row in rows),
        seconds=seconds,
    )


def _usual_ks(samples: int) -> tuple[int, ...]:
    """8 is what others report, and a summary has a place for it whatever was sampled."""
    return tuple(sorted({1, min(8, samples), samples}))


def _by_problem(
    scores: Sequence[RolloutScore], problems: Sequence[Problem], name: str
) -> dict[str, list[RolloutScore]]:
    """Rollouts of each problem by sample, problems in their order."""
    by_problem: dict[str, list[RolloutScore]] = {problem.problem_id: [] for problem in problems}
    for score in scores:
        if score.problem_id not in by_problem:
            raise InputError(f"a rollout of {name} names the unknown problem {score.problem_id!r}")
        by_problem[score.problem_id].append(score)
    for rows in by_problem.values():
        rows.sort(key=lambda row: row.sample)
    return by_problem


def _by_difficulty(
    problems: Sequence[Problem], result: Callable[[str, Sequence[Problem]], GroupResult]
) -> dict[str, GroupResult]:
    levels = sorted({problem.difficulty for problem in problems} - {""})
    found = _split(problems, lambda problem: problem.difficulty, levels, result)
    return {level: found[level] for level in levels}


def _split(
    problems: Sequence[Problem],
    key: Callable[[Problem], str],
    order: Sequence[str],
    result: Callable[[str, Sequence[Problem]], GroupResult],
) -> dict[str, GroupResult]:
    groups = {OVERALL: result(OVERALL, problems)}
    for name in order:
        chosen = [problem for problem in problems if key(problem) == name]
        if chosen:
            groups[name] = result(name, chosen)
    return groups


def _group(
    group: str,
    rows: Sequence[Sequence[RolloutScore]],
    labels: Sequence[str],
    *,
    profiles: tuple[Profile, ...],
    ks: tuple[int, ...],
    samples: int,
    seed: int,
) -> GroupResult:
    scored = [[row for row in problem if row.status == "scored"] for problem in rows]
    flat = [row for problem in scored for row in problem]
    total = sum(len(problem) for problem in rows)
    greedy = not ks

    def mean(value: Callable[[RolloutScore], float]) -> Estimate:
        kept = [(problem, label) for problem, label in zip(scored, labels, strict=True) if problem]
        return cluster_mean(
            [float(np.mean([value(row) for row in problem])) for problem, _ in kept],
            [label for _, label in kept],
            samples=len(flat),
            seed=seed,
        )

    return GroupResult(
        group=group,
        problems=len(rows),
        rollouts=total,
        unscored_rollouts=total - len(flat),
        asr={profile: _rate(flat, profile, len(flat)) for profile in profiles} if greedy else {},
        asr_clustered={profile: mean(_success(profile)) for profile in profiles} if greedy else {},
        asr_worst=_rate(flat, "oro", len(rows)) if greedy else None,
        pass_at={profile: _pass_at(scored, labels, profile, ks, seed) for profile in profiles}
        if ks
        else {},
        pass_at_1_worst=_worst(scored, labels, samples, seed) if ks else None,
        car=mean(lambda row: row.rule),
        valid_turns=mean(lambda row: _share(row.behaviour.valid_turns, row.behaviour.turns)),
        refused_calls=mean(lambda row: _share(row.behaviour.refused_calls, row.behaviour.calls)),
        inventing=mean(lambda row: float(row.behaviour.invented_ids > 0)),
        invented_ids=sum(row.behaviour.invented_ids for row in flat),
        timed_out=sum(row.behaviour.timed_out for row in flat),
        turns=describe([row.behaviour.turns for row in flat]),
        completion_tokens=describe([row.behaviour.completion_tokens for row in flat]),
    )


def _success(profile: str) -> Callable[[RolloutScore], float]:
    return lambda row: float(row.success.get(profile, False))


def _rate(rows: Sequence[RolloutScore], profile: str, n: int) -> Proportion:
    return wilson(sum(row.success.get(profile, False) for row in rows), n)


def _pass_at(
    scored: Sequence[Sequence[RolloutScore]],
    labels: Sequence[str],
    profile: str,
    ks: tuple[int, ...],
    seed: int,
) -> dict[str, Estimate]:
    """Each pass@k over the problems with at least k scored rollouts.

    One set for every k would let a rollout that infrastructure broke take its problem out of
    pass@1, which the others can tell; pass@1 could then be lower than with failures in its place.
    """
    kept = [(_wins(problem, profile), label) for problem, label in zip(scored, labels, strict=True)]
    return {
        str(k): mean_pass_at_k(
            [counts for counts, _ in kept if counts[0] >= k],
            k,
            [label for counts, label in kept if counts[0] >= k],
            seed=seed,
        )
        for k in ks
    }


def _wins(problem: Sequence[RolloutScore], profile: str) -> tuple[int, int]:
    return len(problem), sum(row.success.get(profile, False) for row in problem)


def _worst(
    scored: Sequence[Sequence[RolloutScore]], labels: Sequence[str], samples: int, seed: int
) -> Estimate:
    counts = [(samples, _wins(problem, "oro")[1]) for problem in scored]
    return mean_pass_at_k(counts, 1, labels, seed=seed)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def describe(values: Sequence[float | None]) -> Distribution:
    """Mean and deciles of the values that are there."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return Distribution(n=0, mean=None, p10=None, p50=None, p90=None)
    low, middle, high = (float(q) for q in np.quantile(known, [0.1, 0.5, 0.9]))
    return Distribution(n=len(known), mean=float(np.mean(known)), p10=low, p50=middle, p90=high)
