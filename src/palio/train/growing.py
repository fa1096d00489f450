"""Of a text that a model is still writing, what nothing that may follow changes.

A token may be half a character. The end of a text may be the beginning of a stop string, of the end
mark, of a tool call or of thinking, and becomes one of them, or content, with what comes next. What
is certain here is a beginning of what `requests.completion` finds in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from palio.train.text import CALL, CALL_END, END, THINK, THINK_END

_OPEN = "\ufffd\x1e"
"""Last characters that the next token may change: half a character, and the escape of our own
vocabulary (`tokenizer`), which with the next character stands for a third one."""
_REREAD, _CONTEXT = 64, 16
"""Ids that are decoded with each new one, and how many of those were told before. Decoding all of a
long answer for each token costs its square: 4,096 ids take 13 ms, 64 take 0.02."""


class Growing:
    """The text of ids that come a few at a time: at each step what `decode` says of all of them.

    It decodes the last of them only. That is the same where a token's text depends on its
    neighbours and no more, as in byte-level vocabularies and in ours.

    Attributes:
        ids: so far.
        text: of them.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self.ids: list[int] = []
        self.text = ""
        self._from = 0
        self._before, self._again = "", 0

    def add(self, ids: Sequence[int]) -> None:
        """Read some more ids."""
        self.ids.extend(ids)
        self.text = self._before + self._decode(self.ids[self._from :])[self._again :]
        if len(self.ids) - self._from > _REREAD and self.text[-1:].isascii():
            self._move()

    def _move(self) -> None:
        """Begin later from now on, if what is left out makes no difference for the last word."""
        start = len(self.ids) - _CONTEXT
        seen = self._decode(self.ids[start:])
        if seen and seen[-1].isprintable() and self.text.endswith(seen):
            self._from, self._before, self._again = start, self.text, len(seen)


class Certain(NamedTuple):
    """A beginning of a text that stays.

    Attributes:
        text: that the whole text begins with, once it has ended before its first stop string.
        ended: a stop string has come: the whole text is this one.
    """

    text: str
    ended: bool


def certain(text: str, stops: Sequence[str]) -> Certain:
    """What is certain of a text that goes on.

    Args:
        text: so far.
        stops: strings before the first of which it ends; of two at one place the longer counts, so
            a stop string is one only when no other can begin before it, or there, and be longer.
    """
    held = text.rstrip(_OPEN)
    while (shorter := held[: _opening(held, END)].removesuffix(END)) != held:
        held = shorter
    found = min((at for at in map(held.find, stops) if at >= 0), default=len(held))
    opened = min((_opening(held, stop) for stop in stops), default=len(held))
    return Certain(held[: min(found, opened)], found < opened)


def decided(text: str) -> int:
    """How many characters of a certain text are thinking, content and calls as they stand.

    The rest is thinking or a call whose end is still to come, and is content if that never does; or
    it may be the beginning of one.
    """
    at = 0
    if text.startswith(THINK[: len(text)]):
        thought = text.find(THINK_END, len(THINK))
        if thought < 0:
            return 0
        at = thought + len(THINK_END)
    while (opened := text.find(CALL, at)) >= 0:
        closed = text.find(CALL_END, opened + len(CALL))
        if closed < 0:
            return opened - text[at:opened].endswith("\n")
        at = closed + len(CALL_END)
    return min(_opening(text, mark) for mark in (CALL, "\n" + CALL))


def _opening(text: str, mark: str) -> int:
    """Where the longest beginning of a mark starts that the text ends in; its end without one."""
    at = max(0, len(text) - len(mark) + 1)
    while (at := text.find(mark[0], at)) >= 0:
        if mark.startswith(text[at:]):
            return at
        at += 1
    return len(text)
