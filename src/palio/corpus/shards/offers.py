"""The tools of a row are read once for all rows that offer the same, and compared in the others."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.losses import LossList
from palio.records import Tool, to_json

MARK = b"-%d.5e7" % int.from_bytes(os.urandom(16), "big")
_TAIL = 1024
"""Bytes after the tools of a row in which its ids stand."""
_OFFERS = 256
"""Different sets of tools that are remembered: a data set has a handful, 5 KB each."""


class Offer(NamedTuple):
    """The tools of a row, and what columns and gates make of them."""

    tools: tuple[Tool, ...]
    text: str
    names: frozenset[Any]
    size: int


class Offers:
    """The offers of one file.

    Attributes:
        offer: that of the last row that was taken; None when reading it changes anything.
        last: its bytes.
    """

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.last = b""
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

    def take(self, raw: msgspec.Raw) -> None:
        """The next row has these tools, or none."""
        data = bytes(raw)
        if data != self.last or not data:
            if data not in self._known:
                if len(self._known) >= _OFFERS:
                    self._known.clear()
                self._known[data] = _read(data) if data else Offer((), "[]", frozenset(), 2)
            self.last, self.offer = data, self._known[data]


def _read(data: bytes) -> Offer | None:
    try:
        losses = LossList()
        tools = read_tools(msgspec.json.decode(data), losses)
        text = to_json(tools)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if losses.all or b"\\u0000" in data:
        return None
    names = [tool.get("function", tool).get("name") for tool in tools]
    if not all(isinstance(name, str | None) for name in names):
        return None
    return Offer(tools, text.decode(), frozenset(names), len(text))
