"""Lines below a plan's tables: what its arms and runs are, where the tables do not say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from palio.evaluate.experiment.analysis import apart
from palio.evaluate.experiment.plan import Plan
from palio.evaluate.experiment.runs import ArmRun

MINUS = "\N{MINUS SIGN}"
_COUNTS = defaultdict(lambda: "several", {2: "two", 3: "three"})


def notes_of(plan: Plan, runs: Sequence[ArmRun], everything: Iterable[ArmRun]) -> list[str]:
    """The lines of a plan, each a point of a Markdown list.

    Args:
        plan: what is told.
        runs: those that it is told from.
        everything: runs of all plans and labs, among which students are looked for again.
    """
    return [
        *_arms(plan),
        *_bases(plan, runs),
        *_exposed(runs),
        *_groups(plan, runs),
        *_twins(runs, everything),
        *_late(runs),
    ]


def _arms(plan: Plan) -> list[str]:
    """What an arm is, where its name does not say it."""
    return [f"- {arm.name}: {arm.note}" for arm in plan.arms if arm.note]


def _bases(plan: Plan, runs: Sequence[ArmRun]) -> list[str]:
    """Seeds whose arms are known to start from different weights, and what is not taken for it."""
    lines = []
    for seed in sorted({run.seed for run in runs}):
        found = {run.arm: run for run in runs if run.seed == seed and run.base}
        arms = defaultdict(list)
        for arm in plan.arms:
            if arm.name in found:
                arms[found[arm.name].base].append(arm.name)
        if len(arms) < 2:
            continue
        listed = "; ".join(", ".join(names) for names in arms.values())
        lost = [
            f"{each.arm} {MINUS} {each.against}"
            for each in plan.contrasts
            if {each.arm, each.against} <= found.keys()
            and apart(found[each.arm], found[each.against])
        ]
        line = f"- Arms of seed {seed} start from {_COUNTS[len(arms)]} bases: {listed}."
        if lost:
            line += f" A contrast needs a shared one; these leave the seed out: {', '.join(lost)}."
        lines.append(line)
    return lines


def _exposed(runs: Sequence[ArmRun]) -> list[str]:
    """Both rates that a plan about exposure takes the difference of, with their n."""
    lines = []
    for run in runs:
        if {"exposed", "unexposed"} <= run.groups.keys():
            told = (
                f"{name} {100 * run.rate(name):.1f} % of {run.groups[name][1]:,}"
                for name in ("exposed", "unexposed")
            )
            lines.append(f"- seed {run.seed}: {', '.join(told)}; {run.rows:,} training rows")
    return lines


def _twins(runs: Sequence[ArmRun], everything: Iterable[ArmRun]) -> list[str]:
    """Arms whose student is that of another arm: one training under several names."""
    names = defaultdict(set)
    for run in everything:
        names[run.lab, run.checkpoint, run.seed].add(f"{run.plan}/{run.arm}")
    same = defaultdict(list)
    for run in runs:
        for other in sorted(names[run.lab, run.checkpoint, run.seed]):
            if run.checkpoint and other != f"{run.plan}/{run.arm}":
                same[run.arm, other].append(f"{run.seed}")
    return [
        f"- {arm} has the student of {other} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})."
        for (arm, other), seeds in same.items()
    ]


def _late(runs: Sequence[ArmRun]) -> list[str]:
    """Rollouts that took too long: a slow machine makes failures of what others may solve."""
    return [
        f"- {run.arm}, seed {run.seed}: the clock stopped {run.timed_out:,} rollouts of its "
        "examination, which count as failures."
        for run in runs
        if run.timed_out
    ]


def _groups(plan: Plan, runs: Sequence[ArmRun]) -> list[str]:
    """Success on wordings that arms never trained on, where a plan leaves any out."""
    lines = []
    for arm in plan.arms:
        for bank in arm.banks_out:
            mine = [r for r in runs if r.arm == arm.name]
            rates = [r.rate(f"bank:{bank}") for r in mine if f"bank:{bank}" in r.groups]
            if mine and not rates:
                lines.append(f"- {arm.name}: no problem of the examination is worded in {bank}")
            elif rates:
                shown = ", ".join(f"{100 * rate:.1f}" for rate in rates)
                lines.append(f"- {arm.name} on the unseen wording {bank}: {shown}")
    return lines
