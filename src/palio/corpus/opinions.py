"""Outcome verdicts of several validators arrive as lines and are joined by trajectory id.

They stand beside our own verdict, never in its place; the gate `agreed` asks whether they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from palio.judging.store import read_verdicts
from palio.records import InputError, OutcomeVerdict, to_json
from palio.rollout.verdicts import Judged


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
