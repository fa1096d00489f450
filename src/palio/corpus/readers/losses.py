"""What a reader changed or could not carry over is listed, one code and one place each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from palio.records import PalioError, Record, Trajectory


class Loss(Record, frozen=True):
    """One change between a source row and the trajectory, or a trajectory and a written row.

    Attributes:
        code: short machine code, e.g. "double_encoded", "unknown_key"; docs/formats.md lists all.
        where: path inside the row, e.g. "messages[3].tool_calls[0]".
    """

    code: str
    where: str


class Imported(NamedTuple):
    """A trajectory and everything that reading changed."""

    trajectory: Trajectory
    losses: tuple[Loss, ...]


class UnreadableError(PalioError):
    """A row that is no trace of the format; `reason` is what a reject counts."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


class LossList:
    """Collects losses while one row is read or written."""

    def __init__(self) -> None:
        self.all: list[Loss] = []

    def add(self, code: str, where: str) -> None:
        """One more loss."""
        self.all.append(Loss(code=code, where=where))

    def unknown(self, row: Mapping[Any, Any], known: Container[str], where: str = "") -> None:
        """A loss for each key of `row` that the reader does not know; nulls hold nothing."""
        for key, value in row.items():
            if key not in known and value is not None:
                self.add("unknown_key", f"{where}.{key}" if where else str(key))

    def dropped(self, row: Mapping[str, Any], keys: tuple[str, ...], where: str = "") -> None:
        """A loss for each of `keys` that says something: known, but a trajectory has no place."""
        for key in keys:
            if row.get(key) not in (None, "", [], {}):
                self.add("not_carried", f"{where}.{key}" if where else key)
