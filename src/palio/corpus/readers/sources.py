"""Whatever is named is read as a stream of records in bounded memory: nothing is skipped silently.

A name is a file, a folder, a glob pattern or "-"; a file is plain, gzip or zstd by its first bytes,
and holds JSON lines, JSON documents (laid out over many lines or not), or Parquet rows.
"""

from __future__ import annotations

import glob
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import zstandard

from palio.corpus.readers.decoding import decode, split_documents
from palio.corpus.readers.losses import UnreadableError
from palio.records import InputError

STDIN = "-"
SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")
MAX_BYTES = 64 << 20
"""Longest record that is read: a run of the arena may record 64 MB."""

_CHUNK = 1 << 20
_PIECE = 8 << 10  # compressed bytes at a time: a zstd block of 4 bytes may hold 128 KiB of zeros
_GZIP, _ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_MANIFEST = "manifest.json"
_BOM = b"\xef\xbb\xbf"


class RawRecord(NamedTuple):
    """Bytes of one record and the 1-based line where it starts, or why they could not be read."""

    line: int
    data: bytes
    fault: str = ""
    detail: str = ""


class _BrokenError(Exception):
    """A compressed stream that ends or goes wrong in the middle."""


def named_files(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(files to read, files of folders that are passed over), each in order.

    A folder stands for the files below it in name order, a pattern for what it matches. Passed over
    are: names of no kind that is read; Parquet beside JSON lines of the same name, which hold the
    same rows; manifests; verdicts beside `trajectories*`, and all else beside those of a run.

    Raises:
        InputError: a name matches nothing.
    """
    files: list[str] = []
    others: list[str] = []
    for name in names:
        path = Path(name)
        if name == STDIN or path.is_file():
            files.append(name)
        elif path.is_dir():
            below = (p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
            read, passed = sort_out(below)
            files += [str(path / each) for each in read]
            others += [str(path / each) for each in passed]
        else:
            matches = sorted(m for m in glob.glob(name, recursive=True) if Path(m).is_file())  # noqa: PTH207 - absolute patterns too
            if not matches:
                raise InputError("no such file, folder or pattern", where=name)
            files += matches
    return tuple(dict.fromkeys(files)), tuple(dict.fromkeys(others))


def sort_out(below: Iterable[str]) -> tuple[list[str], list[str]]:
    """(to read, passed over) of the files below a folder, each in name order; see `named_files`.

    Args:
        below: their paths relative to the folder, with slashes, wherever the folder lies.
    """
    paths = sorted(map(PurePosixPath, below))
    there = set(paths)
    held = {p.parent for p in paths if p.name.startswith("trajectories")}
    runs = {
        p.parent
        for p in paths
        if p.name.startswith("trajectories.")
        and any(p.with_name(name) in there for name in ("run.json", _MANIFEST))
    }
    read: list[str] = []
    passed: list[str] = []
    for path in paths:
        beside = path.parent in runs and not path.name.startswith("trajectories")
        beside |= path.parent in held and path.name.startswith("verdicts")
        beside |= _is_twin(path, there) or _is_of_shard(path, there) or path.name == _MANIFEST
        hidden = any(part.startswith(".") for part in path.parts)
        plain = path.name.removesuffix(".gz").removesuffix(".zst")
        (read if plain.endswith(SUFFIXES) and not hidden and not beside else passed).append(
            str(path)
        )
    return read, passed


def _is_twin(file: PurePosixPath, there: set[PurePosixPath]) -> bool:
    return file.suffix == ".parquet" and file.with_suffix(".jsonl") in there


def _is_of_shard(file: PurePosixPath, there: set[PurePosixPath]) -> bool:
    """Whether a file is the manifest or the rejects of a shard that lies beside it."""
    for ending in (".manifest.json", ".rejects.jsonl.zst"):
        if file.name.endswith(ending):
            return file.with_name(file.name.removesuffix(ending) + ".parquet") in there
    return False


def records_of(stream: BinaryIO, max_bytes: int = MAX_BYTES) -> Iterator[RawRecord]:
    """The records of one stream.

    Lines are records, unless the first line is no complete JSON and the whole is: then each
    document is one. A record over `max_bytes` is skipped in chunks and yielded as a fault; a broken
    compressed stream yields what came before, then a fault.
    """
    lines = _lines(_plain(stream), max_bytes)
    first = next(lines, None)
    if first is None:
        return
    if not first.fault and first.data.lstrip()[:1] in (b"{", b"[") and not _is_json(first.data):
        yield from _documents(first, lines, max_bytes)
        return
    yield first
    yield from lines


def lines_from(stream: BinaryIO, line: int, max_bytes: int = MAX_BYTES) -> Iterator[RawRecord]:
    """The lines of a plain stream, each a record; the first has number `line`, counted from 1."""
    return _lines(iter(lambda: stream.read(_CHUNK), b""), max_bytes, line)


def is_packed(head: bytes) -> bool:
    """Whether a file that begins with these four bytes is read as gzip or zstd."""
    return head[:2] == _GZIP or head == _ZSTD


def _is_json(data: bytes) -> bool:
    try:
        decode(data)
    except UnreadableError as error:
        return error.reason != "json"
    return True


def _documents(first: RawRecord, lines: Iterator[RawRecord], max_bytes: int) -> Iterator[RawRecord]:
    """Documents over several lines; falls back to lines where there are none."""
    held, size = [first], len(first.data)
    for line in lines:
        held.append(line)
        size += len(line.data)
        if line.fault or size > max_bytes:
            break
    else:
        try:
            found = split_documents(_laid_out(held))
        except UnreadableError as error:
            if not any(_is_record(line.data) for line in held):
                yield RawRecord(first.line, b"", error.reason, str(error))
                return
        else:
            for before, data in found:
                yield RawRecord(first.line + before, data)
            return
    if not any(_is_record(line.data) for line in held):
        # one document, cut off or too long: one fault for it and not one for each of its lines
        fault, detail = (held[-1].fault, held[-1].detail) if held[-1].fault else ("", "")
        rest = size + sum(len(line.data) for line in lines)
        detail = detail or f"the document has {rest} bytes, at most {max_bytes} are read"
        yield RawRecord(first.line, b"", fault or "too_long", detail)
        return
    yield from held
    yield from lines


def _laid_out(held: Sequence[RawRecord]) -> bytes:
    """The lines as they stood, blank ones included, so that offsets give line numbers."""
    parts: list[bytes] = []
    number = held[0].line
    for line in held:
        parts += [b""] * (line.line - number)
        parts.append(line.data)
        number = line.line + 1
    return b"\n".join(parts)


def _is_record(data: bytes) -> bool:
    """Whether a line stands for itself: an object or list at the very start of the line."""
    if data[:1] not in (b"{", b"[") or len(data) < 3:
        return False
    return _is_json(data)


def _plain(stream: BinaryIO) -> Iterator[bytes]:
    """Decompressed chunks; raises `_BrokenError` after what could be read of a broken stream."""
    head = stream.read(4)
    while 0 < len(head) < 4 and (more := stream.read(4 - len(head))):
        head += more
    if not is_packed(head):
        yield head
        while chunk := stream.read(_CHUNK):
            yield chunk
        return
    gzipped = head[:2] == _GZIP
    engine = _engine(gzipped=gzipped)
    piece = head
    while piece:
        try:
            yield engine.decompress(piece)
            if engine.eof:
                piece = engine.unused_data or stream.read(_PIECE)
                piece = piece.lstrip(b"\0") if gzipped else piece  # tapes pad with zeros
                if not piece:
                    return
                engine = _engine(gzipped=gzipped)
                continue
        except (zlib.error, zstandard.ZstdError) as error:
            raise _BrokenError(str(error)) from error
        piece = stream.read(_PIECE)
    raise _BrokenError("the compressed stream ends in the middle")


def _engine(*, gzipped: bool) -> zlib._Decompress | zstandard.ZstdDecompressionObj:
    if gzipped:
        return zlib.decompressobj(31)
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


def _lines(chunks: Iterator[bytes], max_bytes: int, number: int = 1) -> Iterator[RawRecord]:
    """Lines that are not blank, numbered from `number` with the blank ones counted."""
    held: list[bytes] = []
    size = 0
    try:
        for chunk in chunks:
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:  # split() looks at each byte: 4 us a line
                size += end - start
                held.append(chunk[start:end])
                line = _line(number, held, size, max_bytes)
                if line is not None:
                    yield line
                number, held, size, start = number + 1, [], 0, end + 1
            size += len(chunk) - start
            held.append(chunk[start:])
            if size > max_bytes:
                held = []  # only its length is of interest now
    except (_BrokenError, OSError) as error:
        yield RawRecord(number, b"", "compression", f"{error}; {size} bytes of a record before it")
        return
    line = _line(number, held, size, max_bytes) if size else None
    if line is not None:
        yield line


def _line(number: int, parts: list[bytes], size: int, max_bytes: int) -> RawRecord | None:
    """The record of a line; None when it is blank."""
    if size > max_bytes:
        detail = f"the record has {size} bytes, at most {max_bytes} are read"
        return RawRecord(number, b"", "too_long", detail)
    data = b"".join(parts)
    data = data.removeprefix(_BOM) if number == 1 else data
    data = data.rstrip(b"\r")
    return RawRecord(number, data) if data.strip() else None
