"""What a reader changed or could not carry over is listed, one code and one place each."""

from __future__ import annotations

from typing import NamedTuple

from palio.records import PalioError, Record, Trajectory


class Loss(Record, frozen=True):
    """One change between a source row and the trajectory.

    Attributes:
        code: short machine code, e.g. "double_encoded", "unknown_key".
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
