"""Several opinions become one verdict by one rule: the median bin, ties down, with a quorum.

Unjudged opinions take no part. Fewer judged ones than the quorum make the verdict unjudged.
Opinions more than one bin apart are flagged, whatever their median is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from palio.judging.coefficient import coefficient
from palio.records.trajectory import Fault, Trajectory
from palio.records.verdict import QUALITY_BINS, JudgeId, Opinion, ReasoningVerdict

DISAGREEMENT = "disagreement"
OVERRULED = "overruled"
EVIDENCE = "evidence_differs"


class Consensus(NamedTuple):
    """What opinions agree on.

    Attributes:
        quality: None without a quorum.
        spread: bins between the lowest and the highest opinion.
    """

    quality: float | None
    spread: int


def consensus(qualities: Sequence[float], quorum: int) -> Consensus:
    """The lower median of the judged qualities."""
    bins = sorted(QUALITY_BINS.index(quality) for quality in qualities)
    if not bins or len(bins) < quorum:
        return Consensus(None, 0)
    return Consensus(QUALITY_BINS[bins[(len(bins) - 1) // 2]], bins[-1] - bins[0])


def verdict_of(
    trajectory: Trajectory, judge: JudgeId, opinions: Sequence[Opinion], quorum: int
) -> ReasoningVerdict:
    """The verdict of a panel, or of the one judge that it is.

    Gates and explanation are those of the first opinion that has the median quality.
    """
    judged = [one for one in opinions if one.quality is not None]
    found = consensus([one.quality for one in judged if one.quality is not None], quorum)
    flags = []
    if found.spread > 1:
        flags.append(DISAGREEMENT)
    if any(one.overruled for one in opinions):
        flags.append(OVERRULED)
    if found.quality is None:
        return _unjudged(trajectory, judge, opinions, quorum, tuple(flags))
    speaks = next(one for one in judged if one.quality == found.quality)
    return ReasoningVerdict(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        judge=judge,
        status="judged",
        quality=found.quality,
        coefficient=coefficient(found.quality),
        gates=speaks.gates,
        explanation=speaks.explanation,
        opinions=tuple(opinions),
        flags=tuple(flags),
    )


def _unjudged(
    trajectory: Trajectory,
    judge: JudgeId,
    opinions: Sequence[Opinion],
    quorum: int,
    flags: tuple[str, ...],
) -> ReasoningVerdict:
    failed = [one for one in opinions if one.quality is None]
    alone = len(opinions) == 1
    reason = failed[0].reason if alone else "no_quorum"
    judged = len(opinions) - len(failed)
    why = "; ".join(f"{one.judge.name}: {one.reason}" for one in failed)
    what = failed[0].explanation if alone else f"{judged} of {quorum} opinions needed ({why})"
    fault = next((one.fault for one in failed if one.fault is not None), None)
    return ReasoningVerdict(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        judge=judge,
        status="unjudged",
        explanation=what,
        reason=reason,
        fault=fault,
        opinions=tuple(opinions),
        flags=flags,
    )


def cross_checked(verdict: ReasoningVerdict, evidence: ReasoningVerdict) -> ReasoningVerdict:
    """The verdict, flagged where the evidence judge is more than one bin away from it."""
    if verdict.quality is None or evidence.quality is None:
        return verdict
    bins = [QUALITY_BINS.index(quality) for quality in (verdict.quality, evidence.quality)]
    if abs(bins[0] - bins[1]) <= 1:
        return verdict
    return msgspec.structs.replace(verdict, flags=(*verdict.flags, EVIDENCE))


def unasked(
    trajectory: Trajectory, judge: JudgeId, reason: str, what: str, fault: Fault | None = None
) -> ReasoningVerdict:
    """The verdict on a run that holds nothing to judge, so nobody is asked."""
    return ReasoningVerdict(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        judge=judge,
        status="unjudged",
        explanation=what,
        reason=reason,
        fault=fault,
    )
