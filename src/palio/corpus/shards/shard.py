"""A shard is a pure function: input bytes and configuration in, columns, rejects and manifest out.

The manifest is written last. It is the provenance of the other two files, and what a later run
goes by when it asks whether anything is left to do.
"""

from __future__ import annotations

import gc
import hashlib
import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec
import pyarrow as pa
import zstandard

from palio import __version__
from palio.corpus.gates import TokenCount
from palio.corpus.readers.sources import RawRecord, lines_from, records_of
from palio.corpus.shards.columns import Kept, table_of, writer_of
from palio.corpus.shards.config import ShardConfig
from palio.corpus.shards.screen import Screen, ShardReject
from palio.corpus.shards.spans import Span
from palio.corpus.shards.storage import Folder, opened
from palio.records import InputError, IntegrityError, Record, from_json, to_json
from palio.records.base import current_schema

ROWS, REJECTS, MANIFEST = ".parquet", ".rejects.jsonl.zst", ".manifest.json"
BATCH_BYTES = 4 << 20
"""Input bytes of rows that are held as records before they become columns."""
GROUP_BYTES = 16 << 20
"""Input bytes a row group; one of 4 MB costs 3 us a trace more and packs a tenth worse."""
_PIECE = 1 << 20


class ShardManifest(Record, frozen=True, omit_defaults=False):
    """What one shard was made of and what it holds.

    Attributes:
        name: of the shard; its files begin with it.
        input: as it was named; what follows is told of the shard's part of it.
        first_byte: where the shard's part begins; first_line: its number, counted from 1.
        config_digest: of the `ShardConfig`.
        taken: rows in, unreadable records included; `taken` = `kept` + the sum of `rejected`.
        rejected: rows by reason, most first.
        formats: trajectories by format.
        losses: what reading changed, by code.
        outputs: file name -> digest; sizes: file name -> bytes.
    """

    name: str
    input: str
    first_byte: int
    first_line: int
    input_sha256: str
    input_bytes: int
    config_digest: str
    taken: int
    kept: int
    rejected: dict[str, int]
    formats: dict[str, int]
    losses: dict[str, int]
    outputs: dict[str, str]
    sizes: dict[str, int]
    tool_version: str = __version__
    schema_version: str = msgspec.field(default_factory=current_schema)

    def checked(self) -> ShardManifest:
        """The manifest itself, once its counts add up.

        Raises:
            IntegrityError: a row was lost or counted twice.
        """
        if self.taken != self.kept + sum(self.rejected.values()):
            raise IntegrityError(
                f"{self.taken} rows in, {self.kept} kept, {sum(self.rejected.values())} rejected",
                where=self.input,
                remedy="this is a defect of palio: please report the file",
            )
        return self


class ShardJob(NamedTuple):
    """One shard to make: everything that `make_shard` needs, small enough to send anywhere.

    Attributes:
        span: the part of the input that is read, None for all of it.
        direct: whether clean rows take the direct way.
    """

    name: str
    input: str
    out: str
    config: ShardConfig
    direct: bool = True
    span: Span | None = None


def shard_name(name: str, part: int | None = None) -> str:
    """The name of an input's shard: its own without endings, and 8 digits of where it lies.

    Shards of the parts of one input have numbers, so that their names are in order.
    """
    stem = PurePosixPath(name).name
    for suffix in (".zst", ".gz", ".jsonl", ".ndjson", ".json"):
        stem = stem.removesuffix(suffix)
    whole = f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return whole if part is None else f"{whole}-{part:05}"


def make_shard(job: ShardJob, count: TokenCount | None = None) -> ShardManifest:
    """Read, gate and write one shard.

    Args:
        job: what to read, and where to write.
        count: exact tokens of a row; asked only where bytes exceed the budget.

    Raises:
        InputError: the input cannot be read.
        IntegrityError: a row was lost.
    """
    folder = Folder(job.out)
    folder.remove(job.name + MANIFEST)  # from here on the old output does not count
    screen = Screen(job.input, job.config, count, direct=job.direct)
    with ExitStack() as files:
        files.enter_context(without_collection())
        try:
            source = _Summed(files.enter_context(opened(job.input)), job.span)
        except OSError as error:
            raise InputError(f"cannot be read: {error}", where=job.input) from error
        rows = _Output(files.enter_context(folder.writing(job.name + ROWS)))
        rejects = _Output(files.enter_context(folder.writing(job.name + REJECTS)))
        records = _records(cast("BinaryIO", source), job)
        kept = _written(_screened(screen, records), rows, rejects, job.config.level)
        source.drain()
    outputs = {job.name + ROWS: rows, job.name + REJECTS: rejects}
    manifest = ShardManifest(
        name=job.name,
        input=job.input,
        first_byte=job.span.start if job.span else 0,
        first_line=job.span.line if job.span else 1,
        input_sha256=source.digest(),
        input_bytes=source.size,
        config_digest=job.config.digest(),
        taken=screen.rows,
        kept=kept,
        rejected=_most_first(screen.rejected),
        formats=_most_first(screen.formats),
        losses=_most_first(screen.losses),
        outputs={name: one.digest() for name, one in outputs.items()},
        sizes={name: one.size for name, one in outputs.items()},
    ).checked()
    with folder.writing(job.name + MANIFEST) as stream:
        stream.write(msgspec.json.format(to_json(manifest)) + b"\n")
    return manifest


def _records(source: BinaryIO, job: ShardJob) -> Iterator[RawRecord]:
    if job.span is None:
        return records_of(source, job.config.max_bytes)
    return lines_from(source, job.span.line, job.config.max_bytes)


def _screened(
    screen: Screen, records: Iterator[RawRecord]
) -> Iterator[tuple[int, Kept | ShardReject]]:
    """Each row with the bytes of its record."""
    for raw in records:
        for row in screen.take(raw):
            yield len(raw.data), row
    for row in screen.end():
        yield 0, row


def _written(
    rows: Iterable[tuple[int, Kept | ShardReject]], out: _Output, rejects: _Output, level: int
) -> int:
    """Write rows to one file and rejects to the other; gives the number of rows."""
    kept = fresh = size = 0
    batch: list[Kept] = []
    tables: list[pa.Table] = []
    with (
        writer_of(out, level) as file,
        zstandard.ZstdCompressor(level=1).stream_writer(
            cast("BinaryIO", rejects), closefd=False
        ) as lines,
    ):
        for length, row in rows:
            if isinstance(row, ShardReject):
                lines.write(to_json(row) + b"\n")
                continue
            batch.append(row)
            fresh += length
            if fresh >= BATCH_BYTES:
                tables.append(table_of(batch))
                kept, size = kept + len(batch), size + fresh
                batch, fresh = [], 0
                if size >= GROUP_BYTES:
                    file.write_table(_joined(tables))
                    tables, size = [], 0
        if batch:
            tables.append(table_of(batch))
        if tables:
            file.write_table(_joined(tables))
    return kept + len(batch)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries()


def _most_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


class _Summed(io.RawIOBase):
    """An input, or a part of it, whose bytes are digested as they are read."""

    def __init__(self, stream: BinaryIO, span: Span | None) -> None:
        super().__init__()
        self._stream = stream
        self._sum = hashlib.sha256()
        self._end = None if span is None or span.end is None else span.end - span.start
        self.size = 0
        if span is not None:
            stream.seek(span.start)

    def read(self, size: int = -1, /) -> bytes:
        if self._end is not None:
            left = self._end - self.size
            size = left if size < 0 else min(size, left)
        data = self._stream.read(size)
        self._sum.update(data)
        self.size += len(data)
        return data

    def drain(self) -> None:
        """Read what nobody asked for, so that the digest is of the whole input."""
        while self.read(_PIECE):
            pass

    def digest(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


class _Output(io.RawIOBase):
    """An output whose bytes are digested as they are written."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._sum = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._sum.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def digest(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collector meanwhile: nothing here is cyclic, and it costs 7 us a trace."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def input_digest(name: str, span: Span | None = None) -> tuple[str, int]:
    """(sha256, bytes) of an input, or of a part, as it is now.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with opened(name) as stream:
            source = _Summed(stream, span)
            source.drain()
    except OSError as error:
        raise InputError(f"cannot be read: {error}", where=name) from error
    return source.digest(), source.size


def read_manifest(folder: Folder, name: str) -> ShardManifest | None:
    """The manifest of a shard, None where there is none.

    Raises:
        InputError: the file is no shard manifest.
    """
    data = folder.read(name + MANIFEST)
    return None if data is None else from_json(data, ShardManifest, where=folder.at(name))
