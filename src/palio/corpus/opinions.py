"""Verdicts that are at hand already: those of validators, and our own of an earlier day.

A validator's outcome stands beside our own verdict, never in its place; the gate `agreed` asks
whether they agree. What our own judge said of a run is taken from it, and not asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from palio.judging.store import read_verdicts
from palio.records import (
    InputError,
    JudgeId,
    OutcomeVerdict,
    ReasoningVerdict,
    Trajectory,
    to_json,
)
from palio.rollout.verdicts import Judged, ReasoningJudge


class Recalled:
    """A reasoning judge that is not asked again about what it has judged.

    Args:
        judge: asked about everything else.
        known: trajectory id -> verdict; those of other judges, and "unjudged", are not recalled.
    """

    def __init__(self, judge: ReasoningJudge, known: Mapping[str, ReasoningVerdict]) -> None:
        self._judge = judge
        self._known = {
            name: verdict
            for name, verdict in known.items()
            if verdict.judge == judge.judge_id and verdict.status == "judged"
        }

    @property
    def judge_id(self) -> JudgeId:
        """The identity of the judge, in old verdicts as in new ones."""
        return self._judge.judge_id

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        """What the judge says, or has said, of one trajectory."""
        return self._known.get(trajectory.trajectory_id) or self._judge.verdict(trajectory)


def outcomes_by_trajectory(paths: Iterable[Path]) -> dict[str, tuple[OutcomeVerdict, ...]]:
    """The outcome verdicts of verdict files, by trajectory id, in the order given.

    Raises:
        InputError: a file is missing, or a line is no verdict.
    """
    found: dict[str, list[OutcomeVerdict]] = {}
    for path in paths:
        if not path.is_file():
            raise InputError("no such verdict file", where=str(path), remedy="check the path")
        for verdict in read_verdicts(path):
            if isinstance(verdict, OutcomeVerdict):
                found.setdefault(verdict.trajectory_id, []).append(verdict)
    return {name: tuple(verdicts) for name, verdicts in found.items()}


def with_opinions(
    judged: Iterable[Judged], opinions: Mapping[str, tuple[OutcomeVerdict, ...]]
) -> Iterator[Judged]:
    """The stream with the validators' outcome verdicts after our own; equal ones stand once."""
    for row in judged:
        said = opinions.get(row.trajectory.trajectory_id)
        if not said:
            yield row
            continue
        once = {to_json(verdict): verdict for verdict in (*row.verdicts.outcomes, *said)}
        verdicts = msgspec.structs.replace(row.verdicts, outcomes=tuple(once.values()))
        yield msgspec.structs.replace(row, verdicts=verdicts)
