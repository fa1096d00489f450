"""Traces of any format in, trajectories out: each record is read, or rejected with file and line.

Nothing is lost silently: records in = records read + rejects, changes are listed with each
trajectory, and a repeated id gets a number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow.parquet as pq

from palio.corpus.readers.decoding import Decoded, decode, json_text
from palio.corpus.readers.detect import NAMES, format_of, is_of, read_record
from palio.corpus.readers.losses import Imported, Loss, UnreadableError
from palio.corpus.readers.proxy import is_proxy_call
from palio.corpus.readers.recording import read_log
from palio.corpus.readers.sources import (
    MAX_BYTES,
    PARQUET,
    STDIN,
    RawRecord,
    named_files,
    records_of,
)
from palio.records import ConfigError, InputError, PalioError, Reject, Trajectory

LOG = "request-log"
_LOG_NAME = re.compile(r"request_log_(?P<problem>[^.]+)\.")


class Found(NamedTuple):
    """One trajectory, where it stood, in which format, and what reading changed."""

    trajectory: Trajectory
    losses: tuple[Loss, ...]
    file: str
    line: int
    format: str


class TraceImport:
    """Streams the trajectories of files, folders, patterns and standard input.

    Args:
        names: what to read, see `palio.corpus.readers.sources`.
        format: one of `palio.corpus.readers.detect.NAMES` for all records, or "auto".
        max_bytes: longest record that is read.
        stdin: stream behind the name "-".
        progress: called with (file number from 0, records read so far) after each record.

    Attributes:
        files: the files that are read, in order.
        skipped: files of named folders that are passed over; see `named_files`.
        records: records seen so far, rejects included.
        rejects: what was not read; complete when the stream has ended.
        formats: trajectories by format; losses: changes by code.

    Raises:
        InputError: a name matches nothing.
        ConfigError: there is no such format.
    """

    def __init__(
        self,
        names: Sequence[str | Path],
        *,
        format: str = "auto",  # noqa: A002 - the word of the command line
        max_bytes: int = MAX_BYTES,
        stdin: BinaryIO | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        if format not in ("auto", *NAMES):
            raise ConfigError(f"no format {format!r}", remedy=f"one of auto, {', '.join(NAMES)}")
        self.files, self.skipped = named_files([str(name) for name in names])
        if STDIN in self.files and stdin is None:
            raise InputError("there is no standard input here", where=STDIN)
        self.records = 0
        self.rejects: list[Reject] = []
        self.formats: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self._format = format
        self._max_bytes = max_bytes
        self._stdin = stdin
        self._progress = progress
        self._ids: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Found]:
        for number, file in enumerate(self.files):
            for found in self._file(file):
                yield self._counted(found)
                if self._progress:
                    self._progress(number, self.records)

    def _file(self, file: str) -> Iterator[Found]:
        if file == STDIN:
            assert self._stdin is not None, "the constructor has looked"
            yield from self._stream(file, self._stdin)
            return
        try:
            with Path(file).open("rb") as stream:
                if stream.read(4) == PARQUET:
                    yield from self._table(file)
                    return
                stream.seek(0)
                yield from self._stream(file, stream)
        except OSError as error:
            self.records += 1
            self._reject(file, 0, "unreadable_file", str(error))

    def _stream(self, file: str, stream: BinaryIO) -> Iterator[Found]:
        log = _Log(self._max_bytes)
        for raw in records_of(stream, self._max_bytes):
            if raw.fault:
                self.records += 1
                self._reject(file, raw.line, raw.fault, raw.detail)
                continue
            try:
                decoded = decode(raw.data)
            except UnreadableError as error:
                self.records += 1
                self._reject(file, raw.line, error.reason, error.what)
                continue
            if self._format in ("auto", LOG) and is_proxy_call(decoded.value):
                if not log.fits(raw, decoded.value):
                    yield from self._log(file, log)
                log.add(raw, decoded)
                continue
            yield from self._log(file, log)
            yield from self._record(file, raw.line, decoded)
        yield from self._log(file, log)

    def _record(self, file: str, line: int, decoded: Decoded) -> Iterator[Found]:
        """All trajectories of one record; a list that is no trace holds records."""
        value = decoded.value
        if not self._holds_records(value):
            yield from self._one(file, line, decoded)
            return
        for number, item in enumerate(value):
            own = [loss for loss in decoded.losses if loss.where.startswith(f"[{number}]")]
            if number == 0:
                own += [loss for loss in decoded.losses if not loss.where.startswith("[")]
            yield from self._one(file, line, Decoded(item, tuple(own)), f"element {number}: ")

    def _holds_records(self, value: Any) -> bool:
        return (
            isinstance(value, list)
            and bool(value)
            and all(isinstance(item, dict | list) for item in value)
            and not (format_of(value) if self._format == "auto" else is_of(self._format, value))
        )

    def _one(self, file: str, line: int, decoded: Decoded, place: str = "") -> Iterator[Found]:
        """The trajectories of one record, or its reject; `place` is the record's in its line."""
        self.records += 1
        try:
            read = [
                Found(_encodable(one.trajectory), (*decoded.losses, *one.losses), file, line, name)
                for name, one in read_record(decoded.value, _short(file), self._format)
            ]
        except PalioError as error:
            self._reject(file, line, getattr(error, "reason", "type"), f"{place}{error.what}")
        except RecursionError:
            self._reject(file, line, "too_deep", f"{place}the record nests too deeply")
        except Exception as error:  # noqa: BLE001 - one bad record must not end the import
            self._reject(file, line, "unreadable", f"{place}{type(error).__name__}: {error}"[:300])
        else:
            yield from read

    def _log(self, file: str, log: _Log) -> Iterator[Found]:
        """The run of a request log's lines, if there are any."""
        if not log.rows:
            return
        rows, line, losses = log.take()
        self.records += 1
        named = _LOG_NAME.search(Path(file).name)
        problem = next((str(r["problem_id"]) for r in rows if r.get("problem_id")), "")
        problem = problem or (named["problem"] if named else "")
        try:
            read = read_log(rows, f"{LOG}:{_short(file)}", problem)
            found = Imported(_encodable(read.trajectory), read.losses)
        except (PalioError, RecursionError) as error:
            self._reject(file, line, getattr(error, "reason", "type"), str(error)[:300])
            return
        yield Found(found.trajectory, (*losses, *found.losses), file, line, LOG)

    def _table(self, file: str) -> Iterator[Found]:
        """Rows of a Parquet file, which has nulls where a row has no such key."""
        try:
            with pq.ParquetFile(file) as table:
                number = 0
                for batch in table.iter_batches(batch_size=256):
                    for row in batch.to_pylist():
                        number += 1
                        yield from self._one(file, number, _from_columns(row))
        except (OSError, ValueError) as error:
            self.records += 1
            self._reject(file, 0, "parquet", str(error)[:300])

    def _counted(self, found: Found) -> Found:
        """`found` with an id that no trajectory had before it, counted."""
        trajectory, losses = found.trajectory, found.losses
        given = unique = trajectory.trajectory_id
        while unique in self._ids:
            self._repeats[given] += 1
            unique = f"{given}-{self._repeats[given] + 1}"
        self._ids.add(unique)
        if unique != given:
            trajectory = msgspec.structs.replace(trajectory, trajectory_id=unique)
            losses = (*losses, Loss(code="duplicate_id", where="trajectory_id"))
        self.formats[found.format] += 1
        self.losses.update(loss.code for loss in losses)
        return found._replace(trajectory=trajectory, losses=losses)

    def _reject(self, file: str, line: int, reason: str, detail: str) -> None:
        self.rejects.append(Reject(file=file, line=line, reason=reason, detail=detail))


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


def _short(file: str) -> str:
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


def _from_columns(row: Any) -> Decoded:
    """A Parquet row as JSON has it.

    Columns give every tool call the arguments of every other as nulls; those are taken out again,
    and listed, since nobody can tell them from nulls that were given.
    """
    losses: list[Loss] = []

    def plain(value: Any, where: str) -> Any:
        if isinstance(value, list):
            return [plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
        if isinstance(value, dict):
            kept = {key: plain(item, f"{where}.{key}") for key, item in value.items()}
            if where.endswith((".arguments", ".parameters")) and None in kept.values():
                losses.append(Loss(code="null_argument", where=where))
                kept = {key: item for key, item in kept.items() if item is not None}
            return kept
        return value if isinstance(value, str | int | float | None) else json_text(str(value))

    return Decoded(plain(row, ""), tuple(losses))
