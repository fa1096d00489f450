"""Each dispatch is tied to at most one emitted call, each emitted call to at most one dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from palio.broker.wire import plain_json
from palio.records import ToolCall, canonical_json
from palio.world.tools import canonical_arguments


class Emitted(NamedTuple):
    """Where a completion asked for a call: the event's `seq`, the call's position."""

    seq: int
    position: int


class Ledger:
    """Calls that completions asked for and nobody has dispatched yet.

    A dispatch that names a call id takes the earliest open call with that id, tool and canonical
    arguments; calls written in tags have no id, so an id never rules those out. A dispatch without
    an id takes the earliest open call with the tool and canonical arguments.
    """

    def __init__(self) -> None:
        self._open: dict[Emitted, ToolCall] = {}
        self._keys: dict[tuple[str, str], str] = {}

    def emit(self, seq: int, calls: Sequence[ToolCall]) -> None:
        """A completion recorded as event `seq` asks for `calls`."""
        for index, call in enumerate(calls):
            self._open[Emitted(seq, index)] = call

    def consume(
        self, tool: str, arguments: str, call_id: str = "", *, seq: int | None = None
    ) -> Emitted | None:
        """The emitted call that this dispatch carries out, now used up; None if there is none.

        Args:
            tool: its name.
            arguments: its argument JSON.
            call_id: the id that it names, "" for none.
            seq: only calls of this event count; None: those of all.
        """
        for place, call in self._open.items():
            if call.function.name != tool or (call_id and call.id and call.id != call_id):
                continue
            if seq is not None and place.seq != seq:
                continue
            given = call.function.arguments
            if given == arguments or self._key(tool, given) == self._key(tool, arguments):
                del self._open[place]
                return place
        return None

    def consume_place(self, place: Emitted) -> bool:
        """Use up exactly the call at `place`, whose proof was shown; whether it was open."""
        return self._open.pop(place, None) is not None

    def _key(self, tool: str, arguments: str) -> str:
        key = self._keys.get((tool, arguments))
        if key is None:
            key = argument_key(tool, arguments)
            self._keys[tool, arguments] = key
        return key


def argument_key(tool: str, arguments: str) -> str:
    """Equal for two argument texts that ask the tool for the same thing."""
    try:
        return canonical_json(canonical_arguments(tool, arguments)).decode()
    except Exception:  # noqa: BLE001 - what cannot be read is compared as it stands
        return plain_json(arguments)
