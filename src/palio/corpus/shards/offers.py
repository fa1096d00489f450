"""The tools of a row are read once for all rows that offer the same, and compared in the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.losses import LossList
from palio.records import Tool, to_json

MARK = b"-%d.5e7" % int.from_bytes(os.urandom(16), "big")
_TAIL = 1024
"""Bytes after the tools of a row in which its ids stand."""
_OFFERS = 256
"""Different sets of tools that are remembered: a data set has a handful, 5 KB each."""


_own_tools = msgspec.json.Decoder(tuple[Tool, ...]).decode
_FAULTS = (
    *(msgspec.MsgspecError, AttributeError, TypeError, ValueError, OverflowError),
    RecursionError,
)


class Offering(Protocol):
    """A decoded row, its tools as they stand in it."""

    @property
    def tools(self) -> msgspec.Raw:
        """JSON, or nothing."""


RowT = TypeVar("RowT", bound=Offering)


class Offer(NamedTuple):
    """The tools of a row, and what columns and gates make of them."""

    tools: tuple[Tool, ...]
    text: str
    names: frozenset[Any]
    size: int


NOTHING = Offer((), "[]", frozenset(), 2)


class Offers:
    """The offers of one file.

    Args:
        read: what tools say; None when reading them changes anything.

    Attributes:
        offer: that of the last row that was taken; None when reading it changes anything.
        last: its bytes.
    """

    def __init__(self, read: Callable[[bytes], Offer | None]) -> None:
        self.offer: Offer | None = None
        self.last = b""
        self._read = read
        self._tail = 0
        self._known: dict[bytes, Offer | None] = {}

    def spliced(self, data: bytes) -> bytes:
        """The row with `MARK` for its tools, if they stand near its end and are the last row's.

        Tools are a third of a row and nearly always the same: comparing costs 1 us, parsing 5 us.
        Nobody can guess the mark, so a row whose tools it is had those tools at that very place.
        """
        last = self.last
        if not last:
            return data
        at = len(data) - self._tail
        if at < 0 or not data.startswith(last, at):
            at = data.find(last[:64], max(0, len(data) - len(last) - _TAIL))
            if at < 0 or not data.startswith(last, at):
                return data
            self._tail = len(data) - at
        view = memoryview(data)
        return b"".join((view[:at], MARK, view[at + len(last) :]))

    def decoded(self, decode: Callable[[bytes], RowT], data: bytes, spliced: bytes) -> RowT:
        """The row, with `offer` its own; `spliced` is what was made of `data`."""
        row = decode(spliced)
        if bytes(row.tools) != MARK:
            if spliced is not data:
                row = decode(data)
            self.take(row.tools)
        return row

    def take(self, raw: msgspec.Raw) -> None:
        """The next row has these tools, or none."""
        data = bytes(raw)
        if data != self.last or not data:
            if data not in self._known:
                if len(self._known) >= _OFFERS:
                    self._known.clear()
                self._known[data] = self._read(data) if data else NOTHING
            self.last, self.offer = data, self._known[data]


def read_of_chat(data: bytes) -> Offer | None:
    """The tools of a chat row."""
    try:
        losses = LossList()
        tools = read_tools(msgspec.json.decode(data), losses)
        return None if losses.all else _offer(tools, data)
    except _FAULTS:
        return None


def read_of_own(data: bytes) -> Offer | None:
    """The tools of a trajectory of palio's own."""
    try:
        return _offer(_own_tools(data), data)
    except _FAULTS:
        return None


def _offer(tools: tuple[Tool, ...], data: bytes) -> Offer | None:
    text = to_json(tools)
    names = [tool.get("function", tool).get("name") for tool in tools]
    if b"\\u0000" in data or not all(isinstance(name, str | None) for name in names):
        return None
    return Offer(tools, text.decode(), frozenset(names), len(text))
