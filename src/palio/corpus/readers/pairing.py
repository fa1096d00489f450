"""Call ids of a trace are unique, and every result names the call that it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

How = Literal["id", "name", "position", "none"]


class Answered(NamedTuple):
    """Which call a result answers, and how that was found: "none" leaves it an orphan."""

    call_id: str
    how: How


class CallIds:
    """Gives calls unique ids and finds the call of a result.

    A repeated id stands for another call each time (one converter derives ids from name and
    arguments, so that repeats collide): the second "a" becomes "a-2". A result answers the first
    open call of its turn with its id; without an id, the first open call of its tool's name, and
    without a name, the first open call.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._calls = 0
        # the open calls in order; by the id they were given, by their own id, by their tool
        self._open: dict[str, None] = {}
        self._by_id: dict[str, deque[str]] = {}
        self._by_name: dict[str, deque[str]] = {}

    def open(self, given: Sequence[str], names: Sequence[str] = ()) -> list[str]:
        """Unique ids for the calls of one message; calls still open from before are closed."""
        self._open, self._by_id, self._by_name = {}, {}, {}
        for place, base in enumerate(given):
            self._calls += 1
            unique = self._unique(base or f"call-{self._calls}")
            self._open[unique] = None
            for known in {base, unique} - {""}:
                self._by_id.setdefault(known, deque()).append(unique)
            if place < len(names):
                self._by_name.setdefault(names[place], deque()).append(unique)
        return list(self._open)

    def _unique(self, base: str) -> str:
        unique = base
        while unique in self._used:
            self._repeats[base] = self._repeats.get(base, 1) + 1
            unique = f"{base}-{self._repeats[base]}"
        self._used.add(unique)
        return unique

    def answer(self, given: str, name: str = "") -> Answered:
        """The call that a result answers; an orphan keeps what it was given."""
        found = self._take(self._by_id.get(given)) if given else self._take(self._by_name.get(name))
        if found:
            return Answered(found, "id" if given else "name")
        if given or not self._open:
            return Answered(given or "orphan", "none")
        first = next(iter(self._open))
        del self._open[first]
        return Answered(first, "position")

    def _take(self, waiting: deque[str] | None) -> str:
        """The first of `waiting` that is still open, now closed; "" when there is none."""
        while waiting:
            unique = waiting.popleft()
            if unique in self._open:
                del self._open[unique]
                return unique
        return ""
