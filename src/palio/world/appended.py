"""A file of JSON lines that grows: each whole line counts once, what a kill tore at its end never.

A line is one JSON object. It is whole with its line end, and at the end of the file without it if
the object is whole: an object shows where it ends, so no part of one passes for whole, and a kill
between a line and its line end costs nothing. What else follows the last line end is torn, left
half-written by a kill or a full disk. Readers pass over it (`whole_lines`); who appends mends the
end first (`mend_end`), or the next line would be glued to it. A line in the middle is never passed
over: one that is broken there is its reader's error, which names file and row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from palio.records import from_json

T = TypeVar("T")
_BLOCK = 1 << 16


class WholeLine(NamedTuple):
    """One line without its end.

    Attributes:
        where: file and 1-based row, for errors.
    """

    data: bytes
    where: str


def whole_lines(path: Path) -> Iterator[WholeLine]:
    """The whole lines of a file in order, in the memory of one; no file is no lines.

    Nothing is written: another process may be appending.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") or _is_object(line):
                yield WholeLine(line.removesuffix(b"\n"), f"{path}:{number}")


def whole_records(path: Path, kind: type[T]) -> Iterator[T]:
    """The whole lines of a file, decoded.

    Raises:
        InputError: a whole line is none of this kind, or one in the middle is torn; names file and
            row.
    """
    for line in whole_lines(path):
        yield from_json(line.data, kind, where=line.where)


def mend_end(path: Path, *, aside: Callable[[bytes], None] | None = None) -> int:
    """Make a file fit to be appended to: a torn rest goes, a whole last line gets its line end.

    Whole lines stay as they are, whatever they hold. What is changed is synced to disk. Several
    processes may do this at the same time, as long as none of them appends before all have done it.

    Args:
        path: the file; none is no error.
        aside: is given a torn rest before it is cut off, to keep it elsewhere.

    Returns:
        Bytes that were cut off.
    """
    if not path.is_file():
        return 0
    with path.open("r+b") as file:
        whole, rest = _end(file)
        if not rest:
            return 0
        lost = 0
        if _is_object(rest):
            file.seek(whole + len(rest))  # not appended: of two processes both write this place
            file.write(b"\n")
        else:
            if aside is not None:
                aside(rest)
            file.truncate(whole)
            lost = len(rest)
        file.flush()
        os.fsync(file.fileno())
    return lost


def _end(file: BinaryIO) -> tuple[int, bytes]:
    """How many bytes the lines with a line end have, and what follows the last of them."""
    size = at = file.seek(0, os.SEEK_END)
    whole = 0
    while at and not whole:
        start = max(0, at - _BLOCK)
        file.seek(start)
        whole = start + file.read(at - start).rfind(b"\n") + 1
        if whole == start:  # none in this block
            whole = 0
        at = start
    file.seek(whole)
    return whole, file.read(size - whole)


def _is_object(text: bytes) -> bool:
    """Whether this is one whole JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
