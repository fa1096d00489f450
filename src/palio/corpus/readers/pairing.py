"""Call ids of a trace are unique, and every result names the call that it answers."""

from __future__ import annotations

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
        self._open: list[tuple[str, str, str]] = []
        self._calls = 0

    def open(self, given: Sequence[str], names: Sequence[str] = ()) -> list[str]:
        """Unique ids for the calls of one message; calls still open from before are closed."""
        self._open = []
        for place, base in enumerate(given):
            self._calls += 1
            unique, number = base or f"call-{self._calls}", 1
            while unique in self._used:
                number += 1
                unique = f"{base or f'call-{self._calls}'}-{number}"
            self._used.add(unique)
            self._open.append((base, unique, names[place] if place < len(names) else ""))
        return [unique for _, unique, _ in self._open]

    def answer(self, given: str, name: str = "") -> Answered:
        """The call that a result answers; an orphan keeps what it was given."""
        for place, (own, unique, tool) in enumerate(self._open):
            if (given and given in (own, unique)) or (not given and name and name == tool):
                del self._open[place]
                return Answered(unique, "id" if given else "name")
        if given or not self._open:
            return Answered(given or "orphan", "none")
        _, unique, _ = self._open.pop(0)
        return Answered(unique, "position")
