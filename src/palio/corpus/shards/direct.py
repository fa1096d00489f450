"""Clean chat rows are read and gated in one pass over typed messages, at seven times the speed.

A row is clean when `palio.corpus.readers.chat` would list no loss and rename nothing. What is not
proved clean is handed to the general reader, so both ways give the same result. A clean row that a
gate may drop is handed to the gates themselves as a trajectory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import CHECKS, RECOMMEND, SEARCHES, ids_in, mentions, tells
from palio.corpus.gates import Gate
from palio.corpus.ranking import DEEP, MANY_QUERIES
from palio.corpus.readers.assembly import external_agent
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.losses import LossList
from palio.corpus.readers.reading import short_name
from palio.corpus.readers.record import events_of
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards.clean import CleanMessage, CleanRow, Told, is_plain, told_of
from palio.corpus.shards.columns import Kept, Run, conversation_key
from palio.judging.answers import product_ids
from palio.records import (
    AgentRef,
    Ending,
    Tool,
    ToolCall,
    Trajectory,
    bytes_digest,
    to_json,
)
from palio.world.arguments import CATALOGUE_TOOLS

GATES = frozenset(
    (
        *("scored", "paired_calls", "one_recommendation", "parsable_arguments", "let_in"),
        *("resolved_products", "ends_well", "gate", "on_axis", "true_to_record", "grounded"),
        "good_format",
    )
)
"""Names of the gates that `_passes` stands for; when there is another, each row meets them all.

"gate" is the budget, and the oracle, which knows no problem here. `scored`, `let_in` and
`true_to_record` keep every clean chat row.
"""

_MARK = b"-%d.5e7" % int.from_bytes(os.urandom(16), "big")
_TAIL = 1024
"""Bytes after the tools of a row in which its ids stand."""
_sorted = msgspec.json.Encoder(order="sorted").encode
_arguments = msgspec.json.Decoder(dict[str, Any]).decode


class _Offer(NamedTuple):
    """The tools of a row, read once for all rows that offer the same."""

    tools: tuple[Tool, ...]
    text: str
    names: frozenset[Any]
    size: int


class _Passed(NamedTuple):
    """The calls of a row that passes: names, parsed arguments, and the ids it recommends."""

    names: list[str]
    parsed: list[dict[str, Any]]
    wanted: tuple[str, ...]


class DirectReader:
    """Reads clean chat rows of one file.

    Args:
        file: its name.
        config: the gates.
        steps: the gates as they apply; others than `GATES` are asked themselves.
    """

    def __init__(
        self, file: str, config: CorpusConfig, steps: Sequence[tuple[str, Sequence[Gate]]]
    ) -> None:
        self._source = f"chat:{short_name(file)}"
        self._config = config
        self._covered = {gate.__name__ for _, gates in steps for gate in gates} <= GATES
        self._decode = msgspec.json.Decoder(CleanRow).decode
        self._last = b""
        self._tail = 0
        self._offer: _Offer | None = None
        self._offers: dict[bytes, _Offer | None] = {}
        self._agents: dict[tuple[str, str], AgentRef] = {}
        axes = [
            config.axis_of(rich if level in config.evidence else None) in config.axes
            for rich, level in ((1.0, "heuristic"), (None, "unknown"))
        ]
        self._on_axis, self._off_axis = axes

    def read(self, raw: RawRecord) -> Kept | Trajectory | None:
        """A row that passes every gate, one that the gates must see, or None: not clean."""
        data = raw.data
        try:
            row = self._decode(self._spliced(data))
            if bytes(row.tools) != _MARK:
                row = self._decode(data)
                self._offer_of(row.tools)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        offer = self._offer
        told = told_of(row.messages) if offer is not None and is_plain(row) else None
        if told is None or offer is None:
            return None
        name = row.trajectory_id or row.id or bytes_digest(_sorted(msgspec.json.decode(data)))[7:39]
        agent = self._agents.get((row.agent, row.model))
        if agent is None:
            agent = external_agent(row.agent, row.model)
            self._agents[row.agent, row.model] = agent
        heads = (name, row.problem_id, row.query or _request(row.messages), row.kind)
        size = len(data) - len(self._last) + 20 * len(told.calls)
        passed = self._passes(row.messages, told, offer, size) if self._covered else None
        if passed is None:
            return self._trajectory(heads, agent, row, offer)
        return self._kept(heads, agent, row, offer, told, passed, raw.line)

    def _spliced(self, data: bytes) -> bytes:
        """The row with `_MARK` for its tools, if they stand near its end and are the last row's.

        Tools are a third of a row and nearly always the same: comparing costs 1 us, parsing 5 us.
        Nobody can guess the mark, so a row whose tools it is had those tools at that very place.
        """
        last = self._last
        if not last:
            return data
        at = len(data) - self._tail
        if at < 0 or not data.startswith(last, at):
            at = data.find(last[:64], max(0, len(data) - len(last) - _TAIL))
            if at < 0 or not data.startswith(last, at):
                return data
            self._tail = len(data) - at
        view = memoryview(data)
        return b"".join((view[:at], _MARK, view[at + len(last) :]))

    def _offer_of(self, raw: msgspec.Raw) -> None:
        """Take the tools; None when reading them changes anything."""
        data = bytes(raw)
        if data != self._last or not data:
            if data not in self._offers:
                if len(self._offers) >= _OFFERS:
                    self._offers.clear()
                self._offers[data] = _read_offer(data) if data else _Offer((), "[]", frozenset(), 2)
            self._last, self._offer = data, self._offers[data]

    def _trajectory(
        self, heads: tuple[str, str, str, str], agent: AgentRef, row: CleanRow, offer: _Offer
    ) -> Trajectory:
        """What the general reader makes of a clean row."""
        messages = tuple(row.messages)
        answers = [
            ids_in(_parsed(call))
            for message in messages
            for call in message.tool_calls
            if call.function.name == RECOMMEND
        ]
        return Trajectory(
            trajectory_id=heads[0],
            problem_id=heads[1],
            query=heads[2],
            kind=heads[3],
            agent=agent,
            events=events_of(messages),
            messages=messages,
            tools=offer.tools,
            answer=",".join(answers[-1]) if answers else None,
            ending=_ending(call.function.name for m in messages for call in m.tool_calls),
            isolation="unknown",
            eligible=False,
            source=self._source,
        )

    def _passes(
        self, messages: list[CleanMessage], told: Told, offer: _Offer, size: int
    ) -> _Passed | None:
        """What a row that no gate drops asks for; None when one might drop it.

        `size` is at least the bytes of the messages' JSON form.
        """
        config = self._config
        calls, results = told.calls, told.results
        done = len(results)
        if not told.tidy or not done:
            return None
        names = [call.function.name for call in calls]
        if names.count(RECOMMEND) != 1 or (at := names.index(RECOMMEND)) >= done:
            return None
        if any(name not in config.terminal_tools for name in names[done:]):
            return None
        try:
            parsed = [_arguments(call.function.arguments) for call in calls]
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        wanted = _ids(parsed[at])
        if not wanted or not _names_them(wanted):
            return None
        tools = offer.size if config.count_tools else 0
        if size + tools > config.token_budget and (
            len(to_json(messages)) + tools > config.token_budget
        ):
            return None
        acted = not CATALOGUE_TOOLS_SET.isdisjoint(names[:done])
        if not (self._on_axis if acted else self._off_axis):
            return None
        if config.grounding and not _grounded(wanted, calls[:at], results):
            return None
        if not config.format:
            return _Passed(names, parsed, wanted) if told.ended else None
        if not told.formed or told.thinking / told.turns < config.thinking:
            return None
        if offer.names and not offer.names.issuperset(names):
            return None
        return _Passed(names, parsed, wanted)

    def _kept(
        self,
        heads: tuple[str, str, str, str],
        agent: AgentRef,
        row: CleanRow,
        offer: _Offer,
        told: Told,
        passed: _Passed,
        line: int,
    ) -> Kept:
        names, parsed, wanted = passed
        run = Run(
            agent=agent,
            answer=",".join(wanted),
            ending=_ending(names),
            isolation="unknown",
            eligible=False,
            source=self._source,
        )
        catalogue = sum([name in CATALOGUE_TOOLS_SET for name in names[: len(told.results)]])
        return Kept(
            *heads,
            agent.name,
            row.messages,
            offer.text,
            to_json(run).decode(),
            None,
            line,
            "chat",
            None,
            conversation_key(row.messages),
            "heuristic" if catalogue else "unknown",
            "agentic" if catalogue else "unknown",
            1.0 if catalogue else None,
            catalogue,
            catalogue,
            *_signals(told, names, parsed, wanted),
        )


_OFFERS = 256
"""Different sets of tools that are remembered: a data set has a handful, 5 KB each."""
CATALOGUE_TOOLS_SET = frozenset(CATALOGUE_TOOLS)


def _read_offer(data: bytes) -> _Offer | None:
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
    return _Offer(tools, text.decode(), frozenset(names), len(text))


def _request(messages: list[CleanMessage]) -> str:
    return next((m.content for m in messages if m.role == "user"), "") or ""


def _parsed(call: ToolCall) -> dict[str, Any] | None:
    try:
        return _arguments(call.function.arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _ending(names: Iterable[str]) -> Ending:
    return Ending.terminated if "terminate" in names else Ending.returned


def _grounded(wanted: Sequence[str], calls: Sequence[ToolCall], results: Sequence[str]) -> bool:
    """`palio.corpus.conversation.ungrounded_ids` finds none."""
    return all(_is_told(name, calls, results) for name in wanted)


def _is_told(name: str, calls: Sequence[ToolCall], results: Sequence[str]) -> bool:
    key = f'"product_id":"{name}"'  # as palio's own tools write it: no need to look closer
    for call, result in zip(calls, results, strict=False):
        if key in result or (name in result and tells(result, name)):
            arguments = call.function.arguments
            if name not in arguments or not mentions(arguments, name):
                return True
    return False


def _signals(
    told: Told, names: Sequence[str], parsed: Sequence[dict[str, Any]], wanted: Sequence[str]
) -> tuple[float, float, float, float]:
    """`palio.corpus.ranking.signals`, for calls that are already parsed."""
    asked = {_identity(name, said) for name, said in zip(names, parsed, strict=True)}
    searches = sum([one[0] in SEARCHES for one in asked])
    checked: set[str] = set()
    for name, arguments in zip(names[: names.index(RECOMMEND)], parsed, strict=False):
        if name in CHECKS:
            checked.update(_ids(arguments))
    return (
        min(1.0, (told.thinking + len(names)) / DEEP),
        min(1.0, max(0, searches - 1) / (MANY_QUERIES - 1)),
        sum(1 for one in wanted if one in checked) / len(wanted),
        (told.acting / told.turns) * (len(asked) / len(names)),
    )


def _identity(name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    """Equal for calls that ask for the same; one text, which most calls are, needs no encoding."""
    if len(arguments) == 1:
        (only,) = arguments.items()
        if type(only[1]) is str:
            return name, only
    return name, _sorted(arguments)


def _ids(arguments: dict[str, Any]) -> tuple[str, ...]:
    """`ids_in`, which need not be asked about the usual single id."""
    value = arguments.get("product_ids")
    return (value,) if type(value) is str and value.isalnum() else ids_in(arguments)


def _names_them(wanted: tuple[str, ...]) -> bool:
    """Whether the answer of record, the ids with commas between, names the same ids."""
    if len(wanted) == 1 and wanted[0].isalnum():
        return True
    return product_ids(",".join(wanted)) == wanted
