"""Lines of a plain, gzip or zstd file, one at a time, in bounded memory, whatever they hold."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

import zstandard

from palio.records import InputError

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line that is read: the longest real product line is under 0.2 MB."""

Progress = Callable[[int, int, int], None]
"""Called with (compressed bytes read so far, compressed bytes in all, lines so far)."""

_BOM = b"\xef\xbb\xbf"
_BROKEN = (EOFError, OSError, zlib.error, zstandard.ZstdError)
_PROGRESS_EVERY = 2_000
_SKIP_CHUNK = 1024 * 1024


class Line(NamedTuple):
    """One line: its 1-based number and its bytes, or why it could not be read.

    Attributes:
        fault: "" or the reject reason, "too_long" or "compression".
    """

    number: int
    data: bytes
    fault: str = ""
    detail: str = ""


def read_lines(
    path: Path, *, max_bytes: int = MAX_LINE_BYTES, progress: Progress | None = None
) -> Generator[Line]:
    """Yield the lines of `path` without their ends; blank lines are skipped but counted.

    Compression is told by the first bytes, not by the name. A line over `max_bytes` is skipped in
    chunks and yielded as a fault; a broken compressed stream ends the reading with a fault.

    Raises:
        InputError: the file is missing or is not a regular file.
    """
    if not path.is_file():
        raise InputError("no such file", where=str(path), remedy="check the path")
    total = path.stat().st_size
    with path.open("rb") as raw, _decompressed(raw) as stream:
        number = 0
        while True:
            number += 1
            try:
                line = _next_line(stream, number, max_bytes)
            except _BROKEN as error:
                yield Line(number, b"", "compression", f"the stream is broken here: {error}")
                return
            if line is None:
                break
            if progress and number % _PROGRESS_EVERY == 0:
                progress(raw.tell(), total, number)
            if line.fault or line.data.strip():
                yield line
        if progress:
            progress(total, total, number - 1)


def first_bytes(path: Path, size: int = 64) -> bytes:
    """The first bytes of a file after decompression, byte order mark and space left out.

    Raises:
        InputError: as `read_lines`; a broken stream gives no bytes.
    """
    if not path.is_file():
        raise InputError("no such file", where=str(path), remedy="check the path")
    with path.open("rb") as raw, _decompressed(raw) as stream:
        try:
            return stream.read(size).removeprefix(_BOM).lstrip()
        except _BROKEN:
            return b""


def _decompressed(raw: IO[bytes]) -> BinaryIO:
    """A buffered reader over the plain bytes of `raw`; closing it closes no more than itself."""
    magic = raw.read(4)
    raw.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))
    if magic == b"\x28\xb5\x2f\xfd":
        import pyarrow as pa  # here: 0.2 s that a plain file need not pay

        # Arrow's reader raises on a file that ends inside a frame; zstandard's takes it for the
        # end of the data, and the lines that were cut off would be lost without a word.
        reader = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", reader)))
    return cast("BinaryIO", raw)


def _next_line(stream: BinaryIO, number: int, max_bytes: int) -> Line | None:
    """The next line, None at the end of the file."""
    data = stream.readline(max_bytes + 2)
    if not data:
        return None
    if number == 1:
        data = data.removeprefix(_BOM)
    if not data.endswith(b"\n") and len(data) > max_bytes:
        rest = _skip_line(stream)
        detail = f"the line has {len(data) + rest} bytes, at most {max_bytes} are read"
        return Line(number, b"", "too_long", detail)
    return Line(number, data.rstrip(b"\r\n"))


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the current line in chunks; returns how many bytes that was."""
    skipped = 0
    while chunk := stream.readline(_SKIP_CHUNK):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
