"""One decoded record at a time becomes trajectories, or a reject with file, line and reason.

Whoever walks a file, an import or a shard, hands its records to a `RecordReader` in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from palio.corpus.readers.decoding import NUL, Decoded, decode
from palio.corpus.readers.detect import format_of, is_of, read_record
from palio.corpus.readers.losses import Imported, Loss, UnreadableError
from palio.corpus.readers.proxy import is_proxy_call
from palio.corpus.readers.recording import read_log
from palio.corpus.readers.sources import STDIN, RawRecord
from palio.records import PalioError, Reject, Trajectory

LOG = "request-log"
OWN = "palio"
_OWN_START = b'{"trajectory_id":'
_decode_own = msgspec.json.Decoder(Trajectory).decode
_LOG_NAME = re.compile(r"request_log_(?P<problem>[^.]+)\.")


class Found(NamedTuple):
    """One trajectory, where it stood, in which format, and what reading changed."""

    trajectory: Trajectory
    losses: tuple[Loss, ...]
    file: str
    line: int
    format: str


class RecordReader:
    """Reads the records of one file after another, each file's in order.

    Args:
        format: one of `palio.corpus.readers.detect.NAMES` for all records, or "auto".
        max_bytes: longest run of request log lines that is one record.

    Attributes:
        records: records seen so far, rejects included.
        rejects: what was not read so far.
    """

    def __init__(self, format: str, max_bytes: int) -> None:  # noqa: A002 - the word of the command line
        self.records = 0
        self.rejects: list[Reject] = []
        self._format = format
        self._log = _Log(max_bytes)

    @property
    def waiting(self) -> bool:
        """Whether lines of a request log are held until their run ends."""
        return bool(self._log.rows)

    def read(self, file: str, raw: RawRecord) -> Iterator[Found]:
        """All trajectories that one record ends: those of a log before it, and its own."""
        if raw.fault:
            self.records += 1
            self.reject(file, raw.line, raw.fault, raw.detail)
            return
        if (own := self._own(raw.data)) is not None:
            yield from self.end(file)
            self.records += 1
            yield Found(own, (), file, raw.line, OWN)
            return
        try:
            decoded = decode(raw.data)
        except UnreadableError as error:
            self.records += 1
            self.reject(file, raw.line, error.reason, error.what)
            return
        if self._format in ("auto", LOG) and is_proxy_call(decoded.value):
            if not self._log.fits(raw, decoded.value):
                yield from self.end(file)
            self._log.add(raw, decoded)
            return
        yield from self.end(file)
        yield from self._record(file, raw.line, decoded)

    def _own(self, data: bytes) -> Trajectory | None:
        """A clean trajectory of palio's own, in one pass and a third of the time."""
        if not data.startswith(_OWN_START) or self._format not in ("auto", OWN) or NUL in data:
            return None
        try:
            return _decode_own(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # read the long way, which says what is wrong or repairs it

    def reject(self, file: str, line: int, reason: str, detail: str) -> None:
        """One more reject; the record is counted by the caller."""
        self.rejects.append(Reject(file=file, line=line, reason=reason, detail=detail))

    def _record(self, file: str, line: int, decoded: Decoded) -> Iterator[Found]:
        """All trajectories of one record; a list that is no trace holds records."""
        value = decoded.value
        if not self._holds_records(value):
            yield from self.one(file, line, decoded)
            return
        for number, item in enumerate(value):
            own = [loss for loss in decoded.losses if loss.where.startswith(f"[{number}]")]
            if number == 0:
                own += [loss for loss in decoded.losses if not loss.where.startswith("[")]
            yield from self.one(file, line, Decoded(item, tuple(own)), f"element {number}: ")

    def _holds_records(self, value: Any) -> bool:
        return (
            isinstance(value, list)
            and bool(value)
            and all(isinstance(item, dict | list) for item in value)
            and not (format_of(value) if self._format == "auto" else is_of(self._format, value))
        )

    def one(self, file: str, line: int, decoded: Decoded, place: str = "") -> Iterator[Found]:
        """The trajectories of one record, or its reject; `place` is the record's in its line."""
        self.records += 1
        try:
            read = [
                Found(_encodable(one.trajectory), (*decoded.losses, *one.losses), file, line, name)
                for name, one in read_record(decoded.value, short_name(file), self._format)
            ]
        except PalioError as error:
            self.reject(file, line, getattr(error, "reason", "type"), f"{place}{error.what}")
        except RecursionError:
            self.reject(file, line, "too_deep", f"{place}the record nests too deeply")
        except Exception as error:  # noqa: BLE001 - one bad record must not end the import
            self.reject(file, line, "unreadable", f"{place}{type(error).__name__}: {error}"[:300])
        else:
            yield from read

    def end(self, file: str) -> Iterator[Found]:
        """The run of a request log's lines, if any are held: a file, or the run, has ended."""
        if not self._log.rows:
            return
        rows, line, losses = self._log.take()
        self.records += 1
        named = _LOG_NAME.search(Path(file).name)
        problem = next((str(r["problem_id"]) for r in rows if r.get("problem_id")), "")
        problem = problem or (named["problem"] if named else "")
        try:
            read = read_log(rows, f"{LOG}:{short_name(file)}", problem)
            found = Imported(_encodable(read.trajectory), read.losses)
        except (PalioError, RecursionError) as error:
            self.reject(file, line, getattr(error, "reason", "type"), str(error)[:300])
            return
        yield Found(found.trajectory, (*losses, *found.losses), file, line, LOG)


class _Log:
    """Lines of a request log until the run they belong to ends."""

    def __init__(self, max_bytes: int) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self._losses: list[Loss] = []
        self._line = 0
        self._size = 0
        self._max_bytes = max_bytes

    def fits(self, raw: RawRecord, row: Mapping[str, Any]) -> bool:
        """Whether a line goes on with the same run."""
        same = not self.rows or self.rows[-1].get("problem_id") == row.get("problem_id")
        return same and self._size + len(raw.data) <= self._max_bytes

    def add(self, raw: RawRecord, decoded: Decoded) -> None:
        """Take one more line."""
        self._line = self._line or raw.line
        self._size += len(raw.data)
        self.rows.append(decoded.value)
        self._losses += decoded.losses

    def take(self) -> tuple[list[Mapping[str, Any]], int, tuple[Loss, ...]]:
        """The lines so far, the number of the first, and its losses; the log is empty after."""
        taken = (self.rows, self._line, tuple(self._losses))
        self.rows, self._losses, self._line, self._size = [], [], 0, 0
        return taken


def short_name(file: str) -> str:
    """What a trajectory's source calls the file."""
    return "stdin" if file == STDIN else Path(file).name


def _encodable(trajectory: Trajectory) -> Trajectory:
    """The trajectory itself, once it is known that it can be written.

    Raises:
        UnreadableError: it holds what JSON does not.
    """
    try:
        msgspec.json.encode(trajectory)
    except (TypeError, ValueError, OverflowError, UnicodeError) as error:
        raise UnreadableError("not_writable", str(error)[:200]) from error
    return trajectory
