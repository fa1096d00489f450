"""Call ids of a trace are unique, and every result names the call that it answers."""

from __future__ import annotations

from collections.abc import Sequence


class CallIds:
    """Gives calls unique ids and finds the call of a result.

    A repeated id stands for another call each time (one converter derives ids from name and
    arguments, so that repeats collide): the second "a" becomes "a-2". A result answers the first
    open call of its turn with its id; without an id, the first open call.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._open: list[tuple[str, str]] = []
        self._calls = 0

    def open(self, given: Sequence[str]) -> list[str]:
        """Unique ids for the calls of one message; calls still open from before are closed."""
        self._open = []
        for name in given:
            self._calls += 1
            base = name or f"call-{self._calls}"
            unique, number = base, 1
            while unique in self._used:
                number += 1
                unique = f"{base}-{number}"
            self._used.add(unique)
            self._open.append((name, unique))
        return [unique for _, unique in self._open]

    def answer(self, given: str) -> tuple[str, bool]:
        """(id of the call that a result answers, whether it was found by position).

        A result that answers no open call keeps what it was given, and so stays an orphan.
        """
        for place, (name, unique) in enumerate(self._open):
            if not given or given in (name, unique):
                del self._open[place]
                return unique, not given
        return given or "orphan", False
