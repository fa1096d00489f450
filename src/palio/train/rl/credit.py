"""Turns that the teacher did not answer for are counted and told, and never taken for worthless."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from palio.broker.upstream import error_fields
from palio.records import FaultCode, UpstreamError
from palio.train.rl.rollouts import Rollout

LOG = logging.getLogger(__name__)


class Told(NamedTuple):
    """What processes tell each other of a rollout.

    Attributes:
        outcome, credits, success, asked: see `rollouts.Rollout`.
        fault: `error_fields` of why the teacher did not answer; None: it did.
    """

    outcome: float | None
    credits: tuple[float | None, ...] | None
    success: bool
    asked: int
    fault: Mapping[str, Any] | None

    @classmethod
    def of(cls, rollout: Rollout) -> Told:
        """Of one rollout."""
        fault = None if rollout.fault is None else error_fields(rollout.fault)
        return cls(rollout.outcome, rollout.credits, rollout.success, rollout.asked, fault)


def credit_measures(everyone: Sequence[Told]) -> dict[str, float]:
    """What a step's turns earned, under the names that logs use; {} where no teacher is asked.

    `step_reward` is the mean of a turn that is known, `step_reward/sum` of a rollout that is known
    as a whole, `step_reward/uncredited` the share of turns with a call that got no answer.
    """
    credited = [each.credits for each in everyone if each.credits]
    if not credited:
        return {}
    known = [credit for earned in credited for credit in earned if credit is not None]
    sums = [sum(earned) for earned in map(_whole, credited) if earned is not None]
    found = {"step_reward/uncredited": _open(credited) / max(1, _asked(everyone))}
    if known:
        found["step_reward"] = sum(known) / len(known)
    if sums:
        found["step_reward/sum"] = sum(sums) / len(sums)
    return found


def _whole(earned: Sequence[float | None]) -> list[float] | None:
    known = [credit for credit in earned if credit is not None]
    return known if len(known) == len(earned) else None


def _open(credited: Sequence[Sequence[float | None]]) -> int:
    return sum(credit is None for earned in credited for credit in earned)


def _asked(everyone: Sequence[Told]) -> int:
    return sum(each.asked for each in everyone if each.credits)


def check_teacher(everyone: Sequence[Told], step: int) -> None:
    """Warn of turns without an answer; stop where there is none at all.

    Without any credit a stage would go on as one that learns from the outcome alone.

    Raises:
        UpstreamError: the teacher answered for no turn of the step; names its address.
    """
    credited = [each.credits for each in everyone if each.credits]
    asked, missing = _asked(everyone), _open(credited)
    if not missing:
        return
    fault = next(each.fault for each in everyone if each.fault is not None)
    if missing < asked:
        LOG.warning(
            "step %d: the teacher did not answer for %d of %d turns, they have no credit: %s: %s",
            step,
            missing,
            asked,
            fault["where"],
            fault["what"],
        )
        return
    remedy = fault["remedy"] or "see that it runs"
    raise UpstreamError(
        f"the teacher answered for none of the {asked} turns of step {step}: {fault['what']}",
        code=int(fault.get("code", FaultCode.upstream_server_error)),
        where=str(fault["where"]),
        remedy=f"{remedy}; [stage.teacher] names it by `base_url` and `model`, PALIO_TEACHER_KEY "
        "is its key; the same command then goes on from the last state",
    )
