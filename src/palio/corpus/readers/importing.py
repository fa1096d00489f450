"""Traces of any format in, trajectories out: each record is read, or rejected with file and line.

Nothing is lost silently: records in = records read + rejects, changes are listed with each
trajectory, and a repeated id gets a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow.parquet as pq

from palio.corpus.readers.decoding import Decoded, json_text
from palio.corpus.readers.detect import NAMES
from palio.corpus.readers.losses import Loss
from palio.corpus.readers.reading import OWN, Found, RecordReader
from palio.corpus.readers.sources import MAX_BYTES, PARQUET, STDIN, named_files, records_of
from palio.corpus.shards.columns import SCHEMA as SHARD_SCHEMA
from palio.corpus.shards.columns import trajectories_of
from palio.records import ConfigError, InputError, Reject, from_json


class TraceImport:
    """Streams the trajectories of files, folders, patterns and standard input.

    Args:
        names: what to read, see `palio.corpus.readers.sources`.
        format: one of `palio.corpus.readers.detect.NAMES` for all records, or "auto".
        max_bytes: longest record that is read.
        stdin: stream behind the name "-".
        progress: called with (file number from 0, records read so far) after each record.
        number_own: whether repeated ids of palio's own trajectories get a number too; they are
            the same run, so that a corpus would rather count it as repeated.

    Attributes:
        files: the files that are read, in order.
        skipped: files of named folders that are passed over; see `named_files`.
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
        number_own: bool = True,
    ) -> None:
        if format not in ("auto", *NAMES):
            raise ConfigError(f"no format {format!r}", remedy=f"one of auto, {', '.join(NAMES)}")
        self.files, self.skipped = named_files([str(name) for name in names])
        if STDIN in self.files and stdin is None:
            raise InputError("there is no standard input here", where=STDIN)
        self._reader = RecordReader(format, max_bytes)
        self.formats: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self._max_bytes = max_bytes
        self._stdin = stdin
        self._progress = progress
        self._number_own = number_own
        self._ids: set[str] = set()
        self._repeats: Counter[str] = Counter()

    @property
    def records(self) -> int:
        """Records seen so far, rejects included."""
        return self._reader.records

    @property
    def rejects(self) -> list[Reject]:
        """What was not read; complete when the stream has ended."""
        return self._reader.rejects

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
            self._reader.records += 1
            self._reader.reject(file, 0, "unreadable_file", str(error))

    def _stream(self, file: str, stream: BinaryIO) -> Iterator[Found]:
        for raw in records_of(stream, self._max_bytes):
            yield from self._reader.read(file, raw)
        yield from self._reader.end(file)

    def _table(self, file: str) -> Iterator[Found]:
        """Rows of a Parquet file, which has nulls where a row has no such key."""
        try:
            with pq.ParquetFile(file) as table:
                if table.schema_arrow.names == SHARD_SCHEMA.names:
                    yield from self._shard(file, table)
                    return
                number = 0
                for batch in table.iter_batches(batch_size=256):
                    for row in batch.to_pylist():
                        number += 1
                        yield from self._reader.one(file, number, _from_columns(row))
        except (OSError, ValueError) as error:
            self._reader.records += 1
            self._reader.reject(file, 0, "parquet", str(error)[:300])

    def _shard(self, file: str, table: pq.ParquetFile) -> Iterator[Found]:
        """Rows of `palio corpus shard`, which hold everything that was read, losses included."""
        for batch in table.iter_batches(batch_size=256):
            told = (batch[name].to_pylist() for name in ("line", "format", "losses"))
            for trajectory, line, name, losses in zip(trajectories_of(batch), *told, strict=True):
                self._reader.records += 1
                changed = from_json(losses, tuple[Loss, ...], where=file) if losses else ()
                yield Found(trajectory, changed, file, line, name)

    def _counted(self, found: Found) -> Found:
        """`found` with an id that no trajectory had before it, counted."""
        trajectory, losses = found.trajectory, found.losses
        given = unique = trajectory.trajectory_id
        while unique in self._ids and (self._number_own or found.format != OWN):
            self._repeats[given] += 1
            unique = f"{given}-{self._repeats[given] + 1}"
        self._ids.add(unique)
        if unique != given:
            trajectory = msgspec.structs.replace(trajectory, trajectory_id=unique)
            losses = (*losses, Loss(code="duplicate_id", where="trajectory_id"))
        self.formats[found.format] += 1
        self.losses.update(loss.code for loss in losses)
        return found._replace(trajectory=trajectory, losses=losses)


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
