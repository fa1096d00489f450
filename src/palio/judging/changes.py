"""What a new judge sees otherwise: every run whose bin moved, counted by where it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from palio.records.base import Record
from palio.records.verdict import JudgeId, ReasoningVerdict


class Change(Record, frozen=True, omit_defaults=False):
    """One run that the judges see differently; None: unjudged."""

    trajectory_id: str
    problem_id: str
    before: float | None
    after: float | None


class Changes(Record, frozen=True, omit_defaults=False):
    """Two judges over the same runs.

    Attributes:
        n: runs with a verdict of both.
        same: runs in one bin under both, unjudged ones included.
        rose: runs judged higher by the new one; those that either left unjudged are in neither.
        mean_before: mean quality over runs that both judged, None without any.
        transitions: "0.3 -> 0.7" -> runs, those that stayed included; unjudged is "unjudged".
        changed: the runs that moved.
    """

    before: JudgeId
    after: JudgeId
    n: int
    same: int
    rose: int
    fell: int
    mean_before: float | None
    mean_after: float | None
    transitions: dict[str, int]
    changed: tuple[Change, ...]


def changes(
    before: Mapping[str, ReasoningVerdict], after: Mapping[str, ReasoningVerdict]
) -> Changes | None:
    """Compare the verdicts of two judges by trajectory id; None where they share no run."""
    shared = [name for name in after if name in before]
    if not shared:
        return None
    moved = Counter[str]()
    changed: list[Change] = []
    both: list[tuple[float, float]] = []
    for name in shared:
        old, new = before[name].quality, after[name].quality
        moved[f"{_bin(old)} -> {_bin(new)}"] += 1
        if old is not None and new is not None:
            both.append((old, new))
        if old != new:
            one = Change(
                trajectory_id=name, problem_id=after[name].problem_id, before=old, after=new
            )
            changed.append(one)
    return Changes(
        before=before[shared[0]].judge,
        after=after[shared[0]].judge,
        n=len(shared),
        same=len(shared) - len(changed),
        rose=sum(new > old for old, new in both),
        fell=sum(new < old for old, new in both),
        mean_before=sum(old for old, _ in both) / len(both) if both else None,
        mean_after=sum(new for _, new in both) / len(both) if both else None,
        transitions=dict(sorted(moved.items())),
        changed=tuple(changed),
    )


def _bin(quality: float | None) -> str:
    return "unjudged" if quality is None else f"{quality:g}"
