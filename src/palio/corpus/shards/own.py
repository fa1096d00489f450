"""Trajectories of palio's own are read and gated in one pass, where record and messages agree.

A row is served when its dispatches are what its messages say: the same calls, arguments and results
in order. Then every gate on the record says what it says of the messages, and the record is left to
tell who emitted the calls. All other rows are read the general way, which gives the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from palio.corpus.config import CorpusConfig
from palio.corpus.gates import Gate
from palio.corpus.readers.decoding import NUL
from palio.corpus.readers.reading import OWN
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards.calls import signals_of
from palio.corpus.shards.clean import Told
from palio.corpus.shards.columns import OWN_FIELDS, Kept, Run, key_of
from palio.corpus.shards.offers import Offer, Offers, read_of_own
from palio.corpus.shards.passing import ACTING, Dropped, Passed, Passing
from palio.corpus.shards.usual import Turn, Usual, told_of_usual
from palio.judging.answers import product_ids
from palio.judging.richness import axis_of
from palio.records import AgentRef, DispatchEvent, Ending, Event, Trajectory, to_json
from palio.records.trajectory import SALVAGE_MARK
from palio.records.verdict import Axis

START = b'{"trajectory_id":'
_PATIENCE = 16
"""Rows in a row that begin like palio's own and are none, after which none is looked for."""
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class CleanAgent(AgentRef, frozen=True, forbid_unknown_fields=True):
    """An agent with known keys only."""


_TYPES = {
    "agent": CleanAgent,
    "messages": list[Usual],
    "events": msgspec.Raw,
    "tools": msgspec.Raw,
}
_NO_TOOLS = msgspec.Raw(b"")

OwnRow: Any = msgspec.defstruct(
    "OwnRow",
    [
        (field.name, _TYPES.get(field.name, field.type))
        if field.required
        else (
            field.name,
            _TYPES.get(field.name, field.type),
            _NO_TOOLS
            if field.name == "tools"
            else field.default
            if field.default_factory is msgspec.NODEFAULT
            else msgspec.field(default_factory=field.default_factory),
        )
        for field in msgspec.structs.fields(Trajectory)
    ],
    frozen=True,
    gc=False,
    kw_only=True,
    forbid_unknown_fields=True,
)
"""A trajectory with messages of the usual shapes; its tools and its record as they stand."""


class _Inferred(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="inference"):
    """An `InferenceEvent` as `palio.corpus.readers.record.events_of` makes it of messages."""

    seq: int
    at_ms: float
    duration_ms: float
    prefix: int
    request: Sequence[Usual]
    completion: Usual


class _Dispatched(msgspec.Struct, frozen=True, gc=False, tag_field="type", tag="dispatch"):
    """A `DispatchEvent` of the same origin."""

    seq: int
    at_ms: float
    duration_ms: float
    tool: str
    arguments: str
    result: str
    call_id: str
    emitted_by: int


_DERIVED = to_json([_Inferred(0, 0.0, 0.0, 0, [], Turn())])[:-1].partition(b"[]")[0][:-1]
_events = msgspec.json.Decoder(tuple[Event, ...]).decode


class _Record(NamedTuple):
    """What the record of a run adds to its messages.

    Attributes:
        events: as they are stored; None where they follow from the messages.
        emitted, dispatched: calls of the catalogue's tools.
    """

    events: bytes | None
    emitted: int
    dispatched: int
    evidence: Literal["verified", "heuristic", "unknown"]


class OwnReader:
    """Reads palio's own trajectories of one file.

    Args:
        config: the gates.
        steps: the gates as they apply.
    """

    def __init__(self, config: CorpusConfig, steps: Sequence[tuple[str, Sequence[Gate]]]) -> None:
        self._config = config
        self._passing = Passing(config, steps)
        self._offers = Offers(read_of_own)
        self._decode = msgspec.json.Decoder(OwnRow).decode
        self._strange = 0 if self._passing.covered else _PATIENCE

    def read(self, raw: RawRecord) -> Kept | Dropped | None:
        """A row that passes every gate, or one that must go; None: read it the general way."""
        data = raw.data
        if self._strange >= _PATIENCE or not data.startswith(START):
            return None
        try:  # not spliced: copying what is around the tools costs more than passing over them
            row = self._offers.decoded(self._decode, data, data)
        except _FAULTS:
            self._strange += 1
            return None
        self._strange = 0
        offer = self._offers.offer
        if offer is None or row.fault is not None or row.ending is Ending.infra:
            return None
        if row.differences or row.source.startswith(SALVAGE_MARK):
            return None
        told = told_of_usual(row.messages)
        record = None if told is None else _record(bytes(row.events), row.messages, told)
        if told is None or record is None:
            return None
        size = len(data) - len(row.events) - len(self._offers.last) + 20 * len(told.talk.tools)
        passed = self._passing.passed(row.messages, told, offer, size)
        if passed is not None:
            return self._kept(row, offer, told, record, passed, raw.line)
        gone = self._passing.gone(told)
        if gone is None or NUL in data:
            return None
        return Dropped(*gone, row.trajectory_id, row.problem_id, row.agent.name)

    def _kept(
        self, row: Any, offer: Offer, told: Told, record: _Record, passed: Passed, line: int
    ) -> Kept | None:
        """The row, if it is on the axis and its answer is what the model recommended."""
        config, wanted = self._config, passed.wanted
        richness = record.emitted / record.dispatched if record.dispatched else None
        attested = richness if record.evidence in config.evidence else None
        if config.axis_of(attested) not in config.axes or product_ids(row.answer) != wanted:
            return None
        run = to_json(Run(**{name: getattr(row, name) for name in OWN_FIELDS}))
        if NUL in run or "\0" in f"{row.trajectory_id}{row.problem_id}{row.query}{row.kind}":
            return None  # as nowhere else, which was seen: it is repaired the general way
        axis: Axis = axis_of(richness, config.agentic, config.subtask)
        return Kept(
            row.trajectory_id,
            row.problem_id,
            row.query,
            row.kind,
            row.agent.name,
            told.talk,
            offer.text,
            run.decode(),
            record.events,
            line,
            OWN,
            None,
            key_of(told.said),
            record.evidence,
            axis,
            richness,
            record.emitted,
            record.dispatched,
            *signals_of(told, passed.moves, passed.parsed, wanted),
        )


def _record(events: bytes, messages: list[Any], told: Told) -> _Record | None:
    """What the record tells; None where it is not of these messages."""
    if not told.tidy:
        return None
    tools, arguments = told.talk.tools, told.talk.arguments
    if events.startswith(_DERIVED) and events == _derived(messages, told):
        acted = sum([tool in ACTING for tool in tools[: len(told.results)]])
        return _Record(None, acted, acted, "heuristic" if acted else "unknown")
    if NUL in events:
        return None
    try:
        read = _events(events)
    except _FAULTS:
        return None
    carried = [event for event in read if type(event) is DispatchEvent]
    done = len(carried)
    if [event.result for event in carried] != told.results or (
        [event.tool for event in carried] != tools[:done]
        or [event.arguments for event in carried] != arguments[:done]
        or not any(event.at_ms or event.duration_ms for event in read)  # may yet follow from them
    ):
        return None
    calls = [event for event in carried if event.tool in ACTING]
    linked = [event for event in calls if event.emitted_by is not None and not event.echoed]
    proven = all(event.nonce for event in calls) and all(one.nonce == "valid" for one in linked)
    evidence = "unknown" if not calls else "verified" if proven else "heuristic"
    return _Record(
        to_json(read), len(linked), len(calls), cast("Literal['verified', 'heuristic']", evidence)
    )


def _derived(messages: list[Usual], told: Told) -> bytes:
    """The JSON form of the events that follow from messages, all calls the model's."""
    events: list[_Inferred | _Dispatched] = []
    results = iter(told.results)
    done = 0
    for place, message in enumerate(messages):
        if type(message) is not Turn:
            continue
        seq = len(events)
        events.append(_Inferred(seq, 0.0, 0.0, done, messages[done:place], message))
        done = place + 1
        for call in message.tool_calls:
            result = next(results, None)
            if result is not None:
                said = call.function
                at = len(events)
                events.append(
                    _Dispatched(at, 0.0, 0.0, said.name, said.arguments, result, call.id, seq)
                )
    return to_json(events)
