"""One large plain file of JSON lines is shared out by bytes, and gives the rows that it gave whole.

A span begins where a line begins, and only before a line that ends whatever was read before it:
lines of a request log that are one run stay together. Packed files, and documents laid out over
several lines, cannot be entered in the middle and stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from palio.corpus.readers.decoding import decode
from palio.corpus.readers.losses import UnreadableError
from palio.corpus.readers.proxy import is_proxy_call
from palio.corpus.readers.sources import is_packed, lines_from
from palio.corpus.shards.storage import opened
from palio.records import InputError

_PIECE = 1 << 20


class Span(NamedTuple):
    """Bytes [start, end) of a plain file, None for its end; `line` is the number of the first."""

    start: int
    end: int | None
    line: int


def spans_of(name: str, size: int, max_bytes: int) -> tuple[Span, ...]:
    """The spans of a file in order, each of `size` bytes or what lines make of it.

    Empty where the file stays whole: it has no more than `size` bytes, or is no plain file of
    lines. Where a span begins depends on nothing behind it, so a file that grew has the same spans
    but for the last.

    Args:
        name: a local file or a URL.
        size: bytes of a span, 0 for files that stay whole.
        max_bytes: longest record that is read.

    Raises:
        InputError: it cannot be read.
    """
    if not size:
        return ()
    try:
        with opened(name) as stream:
            return _spans(stream, size, max_bytes)
    except OSError as error:
        raise InputError(f"cannot be read: {error}", where=name) from error


def _spans(stream: BinaryIO, size: int, max_bytes: int) -> tuple[Span, ...]:
    total = stream.seek(0, 2)
    if total <= size or not _is_of_lines(stream, max_bytes):
        return ()
    starts = [0]
    for nominal in range(size, total, size):
        start = _start_from(stream, nominal, min(nominal + size, total), max_bytes)
        if start is not None:
            starts.append(start)
    if len(starts) == 1:
        return ()
    ends = [*starts[1:], None]
    numbers = _numbers(stream, starts)
    return tuple(Span(*told) for told in zip(starts, ends, numbers, strict=True))


def _is_of_lines(stream: BinaryIO, max_bytes: int) -> bool:
    """Whether each line is a record for itself, as `records_of` tells by the first."""
    stream.seek(0)
    if is_packed(stream.read(4)):
        return False
    stream.seek(0)
    first = next(lines_from(stream, 1, max_bytes), None)
    return first is not None and not first.fault and _ends_what_was(first.data)


def _start_from(stream: BinaryIO, at: int, stop: int, max_bytes: int) -> int | None:
    """The first place in [at, stop) where a span may begin."""
    return next(
        (place for place, line in _lines_at(stream, at, stop, max_bytes) if _ends_what_was(line)),
        None,
    )


def _lines_at(stream: BinaryIO, at: int, stop: int, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(place, line) of whole lines that begin in [at, stop), up to one that is too long to read."""
    stream.seek(at - 1)  # a line begins behind the next line feed, and this byte may be one
    place, held, entered = at - 1, b"", False
    while chunk := stream.read(_PIECE):
        held += chunk
        start = 0
        while (end := held.find(b"\n", start)) >= 0:
            if entered:
                yield place + start, held[start:end]
            start, entered = end + 1, True
            if place + start >= stop:
                return
        place, held = place + start, held[start:]
        if entered and len(held) > max_bytes:
            return
        held = held if entered else b""
        place = place if entered else stream.tell()


def _ends_what_was(line: bytes) -> bool:
    """Whether a record is no line of a request log, whose run may have begun before."""
    try:
        value = decode(line.rstrip(b"\r")).value
    except UnreadableError:
        return False
    return isinstance(value, dict | list) and not is_proxy_call(value)


def _numbers(stream: BinaryIO, starts: list[int]) -> list[int]:
    """The numbers of the lines that begin at these places, 3 GB of lines a second."""
    stream.seek(0)
    found = [1]
    for start, end in pairwise(starts):
        line, left = found[-1], end - start
        while left and (chunk := stream.read(min(left, _PIECE))):
            line += chunk.count(b"\n")
            left -= len(chunk)
        found.append(line)
    return found
