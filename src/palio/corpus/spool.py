"""Bodies wait on disk, not in memory, until it is known what becomes of them.

The spool holds the JSON of each surviving row once; a few hundred bytes a row stay in memory. The
rejects file keeps what was dropped, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import zstandard

from palio.corpus.gates import Drop
from palio.records import Record, from_json, to_json
from palio.rollout.verdicts import Judged

REJECTS = "rejects.jsonl.zst"


class Spool:
    """An append-only file of JSON documents, read back by position; removed when closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b")
        self._end = 0
        self._reading = False

    def add(self, body: bytes) -> tuple[int, int]:
        """Append a body; (offset, length) reads it back."""
        place = (self._end, len(body))
        if self._reading:  # seeking flushes the buffer: only when the last access was a read
            self._file.seek(self._end)
            self._reading = False
        self._file.write(body)
        self._end += len(body)
        return place

    def body(self, place: tuple[int, int]) -> bytes:
        """The bytes at a place."""
        self._reading = True
        self._file.seek(place[0])
        return self._file.read(place[1])

    def judged(self, place: tuple[int, int]) -> Judged:
        """The row at a place."""
        return from_json(self.body(place), Judged, where=str(self._path))

    def close(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class RejectRow(Record, frozen=True):
    """One dropped row: which step dropped it, why, and the whole judged trajectory."""

    step: str
    reason: str
    detail: str
    trajectory_id: str
    problem_id: str
    agent: str
    judged: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class RejectWriter:
    """Streams `rejects.jsonl.zst`; level 1 writes 500 MB/s and halves what level 3 costs."""

    def __init__(self, folder: Path, *, keep_bodies: bool) -> None:
        self._keep_bodies = keep_bodies
        self._file = (folder / REJECTS).open("wb")
        self._stream: Any = zstandard.ZstdCompressor(level=1).stream_writer(self._file)

    def write(self, step: str, drop: Drop, ids: tuple[str, str, str], body: bytes) -> None:
        """Append one row; `ids` are trajectory, problem and agent."""
        row = RejectRow(
            step=step,
            reason=drop.reason,
            detail=drop.detail,
            trajectory_id=ids[0],
            problem_id=ids[1],
            agent=ids[2],
            judged=msgspec.Raw(body) if self._keep_bodies else msgspec.UNSET,
        )
        self._stream.write(to_json(row) + b"\n")

    def close(self) -> None:
        """Finish the stream."""
        self._stream.close()
