"""A loss list is exact because it is measured: what was written is read back and compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from palio.corpus.readers.losses import Loss
from palio.records import AgentRef, Message, Trajectory

OF_THE_READING = ("source", "isolation", "eligible", "schema_version")
"""Fields that say how a trajectory was come by, which a reader must set anew."""


class Written(NamedTuple):
    """The rows that a trajectory became, none when the format cannot hold it, and what was lost.

    A loss is ``not_carried`` with the field that differs after reading back: "agent.digest",
    "messages[3].name", "events.at_ms" (once for all events).
    """

    rows: tuple[dict[str, Any], ...]
    losses: tuple[Loss, ...]


def differences(wrote: Trajectory, back: Trajectory) -> tuple[Loss, ...]:
    """Every field in which `back` is not `wrote`, in field order."""
    places: list[str] = []
    for field in msgspec.structs.fields(Trajectory):
        ours, theirs = getattr(wrote, field.name), getattr(back, field.name)
        if field.name in OF_THE_READING or ours == theirs:
            continue
        if field.name == "agent":
            places += _fields(AgentRef, ours, theirs, "agent")
        elif field.name == "messages" and len(ours) == len(theirs):
            for index, pair in enumerate(zip(ours, theirs, strict=True)):
                places += _fields(Message, *pair, f"messages[{index}]")
        elif field.name == "events" and [type(e) for e in ours] == [type(e) for e in theirs]:
            for pair in zip(ours, theirs, strict=True):
                places += _fields(type(pair[0]), *pair, "events")
        else:
            places.append(field.name)
    return tuple(Loss(code="not_carried", where=place) for place in dict.fromkeys(places))


def _fields(kind: type, ours: Any, theirs: Any, where: str) -> list[str]:
    names = [field.name for field in msgspec.structs.fields(kind)]
    return [f"{where}.{n}" for n in names if getattr(ours, n) != getattr(theirs, n)]
