"""The run in one JSON file for programs: plain numbers, each beside its n and interval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from palio.broker.pin import ModelPin
from palio.evaluate.comparison import Comparison
from palio.evaluate.faults import FaultCount
from palio.evaluate.floors import FloorResult
from palio.evaluate.report_data import StageResult
from palio.evaluate.results import OVERALL, EvalResult, GroupResult, Rate, rate_of
from palio.evaluate.statistics import Estimate
from palio.records import Record
from palio.records.base import current_schema
from palio.world.artefacts import replacing


class IntentNumbers(Record, frozen=True, omit_defaults=False):
    """Success rate of one intent; `asr` in [0, 1], null when n is 0."""

    asr: float | None
    n: int
    ci_low: float
    ci_high: float


class PassNumbers(Record, frozen=True, omit_defaults=False):
    """pass@k over n problems from `samples` rollouts in all."""

    value: float | None
    n: int
    samples: int
    ci_low: float
    ci_high: float


class MeanNumbers(Record, frozen=True, omit_defaults=False):
    """A mean over n problems, in [0, 1]; null when n is 0."""

    value: float | None
    n: int
    ci_low: float
    ci_high: float


class ClusteredNumbers(Record, frozen=True, omit_defaults=False):
    """A mean over n problems in [0, 1] whose interval takes whole leak clusters as the units."""

    value: float | None
    n: int
    clusters: int
    ci_low: float
    ci_high: float


class BehaviourNumbers(Record, frozen=True, omit_defaults=False):
    """How a policy went about a group of problems, by the host's record; means over problems.

    Attributes:
        valid_turns: share of the turns that make a call and whose calls an offered tool takes.
        refused_calls: share of the calls that a tool answered with an error.
        inventing: share of the rollouts that named a product id which nothing had shown them.
        invented_ids: such ids in total.
        turns, completion_tokens: means over rollouts; null where none was scored.
    """

    valid_turns: MeanNumbers
    refused_calls: MeanNumbers
    inventing: MeanNumbers
    invented_ids: int
    turns: float | None
    completion_tokens: float | None


class GroupNumbers(Record, frozen=True, omit_defaults=False):
    """One intent or difficulty of a policy.

    Attributes:
        problems: of the group, scored or not.
        asr, strict: greedy ASR under `oro` and `strict`, Wilson's interval; null without a greedy
            run.
        asr_clustered, strict_clustered: the same rates with an interval over leak clusters.
        car: mean rule score of the greedy rollouts, of the sampled ones where there are no others.
        pass_at: k -> sampled pass@k under `oro`.
        unscored: rollouts that infrastructure broke, of `rollouts` in all.
        timed_out: rollouts that the wall clock stopped; failures in every rate.
        behaviour: of the greedy rollouts, of the sampled ones where there are no others; null for
            floors.
    """

    problems: int
    asr: IntentNumbers | None
    strict: IntentNumbers | None
    car: MeanNumbers
    pass_at: dict[str, PassNumbers]
    unscored: int
    rollouts: int
    asr_clustered: ClusteredNumbers | None = None
    strict_clustered: ClusteredNumbers | None = None
    timed_out: int = 0
    behaviour: BehaviourNumbers | None = None


class StageSummary(Record, frozen=True, omit_defaults=False):
    """One policy or floor.

    Attributes:
        kind: "learned", "scripted", "floor" or "ceiling".
        intent: "overall" and each intent -> greedy ASR under profile `oro`.
        strict: the same under profile `strict`.
        pass_at_1: sampled, unbiased; null when nothing was sampled. See `pass_at` for its n.
        pass_at_8: the same; null unless 8 or more samples a problem were drawn.
        pass_at: k -> the number with n and interval.
        car: mean rule score of the greedy rollouts, all problems.
        unscored: rollouts that infrastructure broke, greedy and sampled.
        asr_worst: overall ASR with unscored problems counted as failures.
        seconds: what making and evaluating it took; null where nobody kept it.
        pass_at_1_worst: sampled pass@1 with unscored rollouts counted as failures; null when
            nothing was sampled.
        intents: "overall" and each intent with all that there is to say of it.
        difficulties: the same by difficulty; empty where problems name none, and for floors.
        model: which weights answered; null for programs and floors, and where nobody kept it.
        faults: what broke the unscored rollouts, greedy ones before sampled ones.
    """

    name: str
    kind: str
    intent: dict[str, IntentNumbers]
    strict: dict[str, IntentNumbers]
    pass_at_1: float | None
    pass_at_8: float | None
    pass_at: dict[str, PassNumbers]
    car: float | None
    unscored: int
    asr_worst: float | None
    seconds: float | None
    intents: dict[str, GroupNumbers] = {}
    difficulties: dict[str, GroupNumbers] = {}
    model: ModelPin | None = None
    faults: tuple[FaultCount, ...] = ()
    pass_at_1_worst: float | None = None


class Summary(Record, frozen=True, omit_defaults=False):
    """What `summary.json` holds.

    Attributes:
        stages: policies, weakest first.
        floors: what reads nothing, on the same problems.
        reworded: the last policy on requests in words that no training problem has.
        reworded_floors: what reads nothing, on those.
        comparisons: paired comparisons in full.
        seconds: of the whole run.
        stage_seconds: job stage -> seconds.
        peak_rss_mb: largest resident memory of the process tree, MiB.
        seeds: name -> seed.
        versions: package -> version, palio's own included.
        digests: artefact -> digest.
    """

    stages: tuple[StageSummary, ...]
    floors: tuple[StageSummary, ...]
    comparisons: tuple[Comparison, ...]
    seconds: float
    peak_rss_mb: float
    seeds: dict[str, int]
    versions: dict[str, str]
    stage_seconds: dict[str, float] = {}
    digests: dict[str, str] = {}
    reworded: StageSummary | None = None
    reworded_floors: tuple[StageSummary, ...] = ()
    schema_version: str = msgspec.field(default_factory=current_schema)


def make_summary(
    stages: Sequence[StageResult],
    floors: Sequence[FloorResult],
    comparisons: Sequence[Comparison],
    *,
    seconds: float,
    peak_rss_mb: float,
    seeds: Mapping[str, int],
    versions: Mapping[str, str],
    stage_seconds: Mapping[str, float] | None = None,
    digests: Mapping[str, str] | None = None,
    reworded: StageResult | None = None,
    reworded_floors: Sequence[FloorResult] = (),
) -> Summary:
    """The summary of a run; see `Summary` for the arguments."""
    return Summary(
        stages=tuple(stage_summary(stage) for stage in stages),
        floors=tuple(floor_summary(floor) for floor in floors),
        comparisons=tuple(comparisons),
        seconds=seconds,
        peak_rss_mb=peak_rss_mb,
        seeds=dict(seeds),
        versions=dict(versions),
        stage_seconds=dict(stage_seconds or {}),
        digests=dict(digests or {}),
        reworded=stage_summary(reworded) if reworded else None,
        reworded_floors=tuple(floor_summary(floor) for floor in reworded_floors),
    )


def write_summary(summary: Summary, path: Path) -> Path:
    """Write `summary.json`, indented, whole or not at all; gives the path back."""
    text = json.dumps(msgspec.to_builtins(summary), indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode() + b"\n")
    return path


def stage_summary(stage: StageResult) -> StageSummary:
    """One stage in plain numbers."""
    greedy = stage.greedy.overall if stage.greedy else None
    pass_at = _pass_numbers(stage.sampled.overall if stage.sampled else None)
    results = [result for result in (stage.greedy, stage.sampled) if result]
    worst = stage.sampled.overall.pass_at_1_worst if stage.sampled else None
    return StageSummary(
        name=stage.name,
        kind="floor" if stage.floor else stage.origin,
        intent=_by_intent(stage.greedy, "oro"),
        strict=_by_intent(stage.greedy, "strict"),
        pass_at_1=pass_at["1"].value if "1" in pass_at else None,
        pass_at_8=pass_at["8"].value if "8" in pass_at else None,
        pass_at=pass_at,
        car=greedy.car.value if greedy else None,
        unscored=sum(result.overall.unscored_rollouts for result in results),
        asr_worst=greedy.asr_worst.rate if greedy and greedy.asr_worst else None,
        seconds=stage.seconds,
        intents=_groups([result.intents for result in results]),
        difficulties=_groups([result.difficulties for result in results]),
        model=next((result.model for result in results if result.model), None),
        faults=tuple(fault for result in results for fault in result.faults),
        pass_at_1_worst=worst.value if worst else None,
    )


def floor_summary(floor: FloorResult) -> StageSummary:
    """One floor, or the ceiling, in the same shape; it has no samples and nothing can break."""
    overall = floor.rates[OVERALL]["oro"]
    return StageSummary(
        name=floor.name,
        kind=floor.sort,
        intent={intent: _numbers(rates["oro"]) for intent, rates in floor.rates.items()},
        strict={
            intent: _numbers(r["strict"]) for intent, r in floor.rates.items() if "strict" in r
        },
        pass_at_1=None,
        pass_at_8=None,
        pass_at={},
        car=floor.car[OVERALL].value,
        unscored=0,
        asr_worst=overall.value,
        seconds=0.0,
        intents={
            intent: _floor_group(floor.rates[intent], car) for intent, car in floor.car.items()
        },
    )


def _floor_group(rates: Mapping[str, Rate], car: Estimate) -> GroupNumbers:
    """What a floor has of a group: rates and rule scores, no rollouts."""
    return GroupNumbers(
        problems=car.n,
        asr=_numbers(rates["oro"]) if "oro" in rates else None,
        strict=_numbers(rates["strict"]) if "strict" in rates else None,
        car=_mean(car),
        pass_at={},
        unscored=0,
        rollouts=0,
    )


def _by_intent(result: EvalResult | None, profile: str) -> dict[str, IntentNumbers]:
    groups: Mapping[str, GroupResult] = result.intents if result else {}
    return {
        intent: _numbers(rate_of(group.asr[profile]))
        for intent, group in groups.items()
        if profile in group.asr
    }


def _numbers(rate: Rate) -> IntentNumbers:
    return IntentNumbers(asr=rate.value, n=rate.n, ci_low=rate.low, ci_high=rate.high)


def _groups(decoded: Sequence[Mapping[str, GroupResult]]) -> dict[str, GroupNumbers]:
    """Groups of one policy's runs, greedy before sampled."""
    names = dict.fromkeys(name for groups in decoded for name in groups)
    return {name: _group([each[name] for each in decoded if name in each]) for name in names}


def _group(runs: Sequence[GroupResult]) -> GroupNumbers:
    asr, pass_at = runs[0].asr, _pass_numbers(runs[-1])
    return GroupNumbers(
        problems=runs[0].problems,
        asr=_numbers(rate_of(asr["oro"])) if "oro" in asr else None,
        strict=_numbers(rate_of(asr["strict"])) if "strict" in asr else None,
        car=_mean(runs[0].car),
        pass_at=pass_at,
        unscored=sum(run.unscored_rollouts for run in runs),
        rollouts=sum(run.rollouts for run in runs),
        timed_out=sum(run.timed_out for run in runs),
        asr_clustered=_clustered(runs[0], "oro"),
        strict_clustered=_clustered(runs[0], "strict"),
        behaviour=_behaviour(runs[0]),
    )


def _behaviour(group: GroupResult) -> BehaviourNumbers:
    return BehaviourNumbers(
        valid_turns=_mean(group.valid_turns),
        refused_calls=_mean(group.refused_calls),
        inventing=_mean(group.inventing),
        invented_ids=group.invented_ids,
        turns=group.turns.mean,
        completion_tokens=group.completion_tokens.mean,
    )


def _mean(one: Estimate) -> MeanNumbers:
    return MeanNumbers(value=one.value, n=one.n, ci_low=one.low, ci_high=one.high)


def _clustered(group: GroupResult, profile: str) -> ClusteredNumbers | None:
    one = group.asr_clustered.get(profile)
    if one is None:
        return None
    return ClusteredNumbers(
        value=one.value, n=one.n, clusters=one.clusters, ci_low=one.low, ci_high=one.high
    )


def _pass_numbers(group: GroupResult | None) -> dict[str, PassNumbers]:
    estimates: Mapping[str, Estimate] = group.pass_at.get("oro", {}) if group else {}
    return {
        k: PassNumbers(
            value=one.value, n=one.n, samples=one.samples, ci_low=one.low, ci_high=one.high
        )
        for k, one in estimates.items()
    }
