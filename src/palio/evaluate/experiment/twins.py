"""Two arms that are given the same start and rows are one run: it is made once, for both names.

Arms of different plans may be the same treatment (the whole firehose of one plan is all gates of
another), and two gates may keep the same rows. Whether they do is known from the draw, and of arms
that go on from another one from the weights of the run that they start from.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from palio.evaluate.experiment.draw import draw, salt_of
from palio.evaluate.experiment.firehose import FirehoseRow
from palio.evaluate.experiment.plan import Arm, Plan
from palio.evaluate.experiment.runs import ArmRun, counted
from palio.evaluate.experiment.student import DONE
from palio.records import to_json


def twin_of(
    plan: Plan,
    arm: Arm,
    seed: int,
    *,
    runs: Iterable[ArmRun],
    plans: Mapping[str, Plan],
    firehose: Sequence[FirehoseRow],
    base: str = "",
) -> ArmRun | None:
    """A finished run of the lab that was given what this arm would be given, or None.

    Args:
        plan: of the run that is due.
        arm: its arm.
        seed: its seed.
        runs: finished ones of the same lab; those that do not count are passed over, for the plan
            would still lack the run.
        plans: digest -> plan, those that runs may be of; others are passed over.
        firehose: every row.
        base: digest of the weights that arms without a `start` start from; "": not made yet. A run
            that is known to have another base is no twin.
    """
    known = counted(runs)
    origin = _origin(plan, arm, seed, known)
    if origin is None:
        return None
    wanted = _rows(plan, arm, seed, firehose)
    for run in known:
        other = plans.get(run.plan_digest)
        if other is None or run.seed != seed or run.rows != len(wanted):
            continue
        if not arm.start and base and run.base not in ("", base):
            continue
        its = next((each for each in other.arms if each.name == run.arm), None)
        if its is None or _rest(arm) != _rest(its) or not _sampled(plan, other):
            continue
        if _origin(other, its, seed, known) != origin:
            continue
        if _rows(other, its, seed, firehose) == wanted:
            return run
    return None


def adopted(run: ArmRun, plan: Plan, arm: Arm, arms: Path) -> ArmRun | None:
    """The run under the name of its twin; its checkpoints are copied where the plan needs them.

    Args:
        run: what was made.
        plan: the twin's.
        arm: the twin's.
        arms: folder PLAN/ARM/SEED of the lab's runs.

    None where arms of the plan start from this one and the checkpoint is not here any more.
    """
    there = arms / run.plan / run.arm / str(run.seed)
    here = arms / plan.name / arm.name / str(run.seed)
    stages = sorted(there.glob(f"*/{DONE}"))
    if not stages and any(each.start == arm.name for each in plan.arms):
        return None
    for mark in stages:
        shutil.copytree(mark.parent, here / mark.parent.name, dirs_exist_ok=True)
    return msgspec.structs.replace(
        run,
        plan=plan.name,
        plan_digest=plan.digest(),
        arm=arm.name,
        twin=run.twin or run.name,
        pass_at=run.pass_at if plan.samples else {},
        sampled=run.sampled if plan.samples else 0,
        train_s=0.0,
        exam_s=0.0,
    )


def _origin(plan: Plan, arm: Arm, seed: int, runs: Iterable[ArmRun]) -> str | None:
    """Weights that an arm starts from: "" for the seed's base, None where that run is not made."""
    if not arm.start:
        return ""
    digest = plan.digest()
    for run in runs:
        if (run.plan_digest, run.arm, run.seed) == (digest, arm.start, seed):
            return run.checkpoint or None
    return None


def _rows(plan: Plan, arm: Arm, seed: int, firehose: Sequence[FirehoseRow]) -> list[str]:
    if not (arm.sft or arm.stages):
        return []
    rows = draw(plan, arm, firehose, salt_of(seed))
    return [hashlib.sha256(to_json(row)).hexdigest() for row in rows]


def _rest(arm: Arm) -> tuple[object, ...]:
    """What decides a run beside its rows; `exposed` names the groups of the examination."""
    return (arm.tokens, arm.sft, arm.stages, arm.exposed)


def _sampled(plan: Plan, other: Plan) -> bool:
    """Whether runs of the other plan were examined in all that the plan asks: greedy always is."""
    return not plan.samples or (plan.samples, plan.sampled) == (other.samples, other.sampled)
