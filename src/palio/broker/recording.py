"""A recorded run answers again what it answered, and says where a replay departs from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from palio.broker.journal import packed, read_entries
from palio.broker.ledger import Emitted
from palio.broker.upstream import error_of
from palio.records import FaultCode, UpstreamError
from palio.world.tools import ToolReply

TIMES = ("at_ms", "duration_ms", "duration_s")


@dataclass
class Recording:
    """What a journal holds of one run.

    Attributes:
        opening: the `open` entry; see `palio.broker.keeping`.
        entries: all entries in order, the opening first.
        closing: the `close` entry, None when the run was killed.
    """

    opening: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    closing: dict[str, Any] | None = None

    @property
    def trajectory_id(self) -> str:
        """The id of the run."""
        return str(self.opening["trajectory_id"])

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        """The entries of one kind, in order."""
        return (entry for entry in self.entries if entry["kind"] == kind)

    def bodies(self) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]]:
        """(what the agent asked, what the model server was sent, the response entry), in order."""
        responses = {entry["id"]: entry for entry in self.of("response")}
        messages: list[Any] = []
        tools: Any = None
        for entry in self.of("request"):
            messages = [*messages[: entry["prefix"]], *entry["messages"]]
            tools = entry.get("tools", tools)
            shared = {"messages": messages}
            if entry.get("has_tools"):
                shared["tools"] = tools
            response = responses.get(entry["id"])
            yield {**shared, **entry["asked"]}, {**shared, **entry["params"]}, response

    def expiries(self) -> dict[Emitted, int]:
        """When the proofs of each emitted call expired."""
        return {
            Emitted(entry["event"], position): expiry
            for entry in self.of("response")
            for position, expiry in enumerate(entry["expiry"])
        }


@dataclass
class Held:
    """All that a journal holds: its runs in order of their opening, and agents' files."""

    recordings: list[Recording]
    sources: dict[str, str]


def read_recordings(path: Path) -> Held:
    """The runs of a journal.

    Raises:
        IntegrityError: the chain does not hold.
        InputError: the file is no journal.
    """
    runs: dict[int, Recording] = {}
    sources: dict[str, str] = {}
    for entry in read_entries(path):
        if entry["kind"] == "source":
            sources[entry["digest"]] = entry["text"]
        elif entry["kind"] == "open":
            runs[entry["run"]] = Recording(entry, [entry])
        elif "run" in entry:
            run = runs[entry["run"]]
            run.entries.append(entry)
            if entry["kind"] == "close":
                run.closing = entry
    return Held(list(runs.values()), sources)


class Departures:
    """Where a replay did not do what was recorded; the first one explains the rest."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        """Add one."""
        with self._lock:
            self.found.append(what)


class RecordedUpstream:
    """Gives the recorded answer to each recorded request; anything else is a departure.

    Equal requests are answered in the order in which they were recorded.
    """

    def __init__(self, recording: Recording, departures: Departures) -> None:
        self._open = [(sent, response) for _, sent, response in recording.bodies()]
        self._departures = departures
        self._lock = threading.Lock()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Upstream.complete`."""
        asked = msgspec.json.decode(packed(body))
        with self._lock:
            at = next((n for n, (sent, _) in enumerate(self._open) if sent == asked), None)
            if at is None:
                raise self._departed(asked)
            _, response = self._open.pop(at)
        if response is None:
            self._departures.note("a request that was never answered cannot be answered again")
            raise _no_reply()
        if "error" in response:
            raise error_of(response["error"])
        answer: dict[str, Any] = response["body"]
        return answer

    def _departed(self, asked: dict[str, Any]) -> UpstreamError:
        if self._open:
            place = first_difference(self._open[0][0], asked) or "they are equal"
            self._departures.note(f"another request than the recorded one: {place}")
        else:
            self._departures.note("one more request than were recorded")
        return _no_reply()


class RecordedTools:
    """Gives the recorded result of each recorded tool call, without a world."""

    def __init__(self, recording: Recording, departures: Departures) -> None:
        self._open = [entry["event"] for entry in recording.of("result")]
        self._departures = departures
        self._lock = threading.Lock()

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolReply:
        """See `ToolCaller.call`."""
        with self._lock:
            for at, event in enumerate(self._open):
                if event["tool"] == name and event["arguments"] == arguments:
                    del self._open[at]
                    return ToolReply(
                        result=event["result"],
                        warnings=tuple(event.get("warnings", ())),
                        error=event.get("error", ""),
                    )
        self._departures.note(f"a call that was not recorded: {name}({str(arguments)[:80]})")
        return ToolReply(result='{"error":"not recorded"}', error="not recorded")


class MemoryChain:
    """Takes a replay's journal; it is compared, not kept."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def append(self, payload: bytes) -> str:
        """Hold one entry."""
        self.entries.append(msgspec.json.decode(payload))
        return ""

    def sync(self) -> None:
        """Nothing to wait for."""


def compare_entries(recorded: list[dict[str, Any]], made: list[dict[str, Any]]) -> str:
    """The first place where two journals of a run differ, times aside; "" when they are equal."""
    for number, (old, new) in enumerate(zip(recorded, made, strict=False)):
        place = first_difference(masked(old), masked(new))
        if place:
            return f"entry {number} ({old['kind']}): {place}"
    if len(recorded) != len(made):
        return f"{len(recorded)} entries were recorded, the replay made {len(made)}"
    return ""


def masked(entry: Any) -> Any:
    """An entry without what a clock, or the line's place in its file, decides."""
    if isinstance(entry, dict):
        aside = {*TIMES, "digest_of_line"}
        if entry.get("kind") in ("open", "close", "request", "response", "call", "result"):
            aside |= {"run"}
        if entry.get("kind") == "close":
            aside |= {"trajectory"}  # its digest has the times in it; they are compared by `event`
            # What the agent returned is its own clock's: `extra_info.timestamp` of each step.
            entry = {**entry, "claim": _timeless(entry.get("claim"))}
        return {key: masked(value) for key, value in entry.items() if key not in aside}
    return [masked(each) for each in entry] if isinstance(entry, list) else entry


def _timeless(claim: Any) -> Any:
    if not isinstance(claim, list):
        return claim
    steps = []
    for step in claim:
        info = step.get("extra_info") if isinstance(step, dict) else None
        if isinstance(info, dict):
            step = {**step, "extra_info": {**info, "timestamp": None}}
        steps.append(step)
    return steps


def first_difference(old: Any, new: Any, at: str = "") -> str:
    """``place: old -> new`` of the first leaf that differs, "" when none does."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            place = f"{at}.{key}" if at else str(key)
            if key not in old or key not in new:
                return f"{place}: {'only now' if key in new else 'no more'}"
            found = first_difference(old[key], new[key], place)
            if found:
                return found
        return ""
    if isinstance(old, list) and isinstance(new, list):
        for number, (left, right) in enumerate(zip(old, new, strict=False)):
            found = first_difference(left, right, f"{at}[{number}]")
            if found:
                return found
        return "" if len(old) == len(new) else f"{at}: {len(old)} -> {len(new)} members"
    return "" if old == new and type(old) is type(new) else f"{at}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = packed(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _no_reply() -> UpstreamError:
    return UpstreamError(
        "the replay departed from the record, there is no reply to give",
        code=FaultCode.upstream_unreachable,
    )
