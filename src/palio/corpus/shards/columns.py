"""A gated trajectory as Parquet columns, and back, with nothing lost.

Rows have the messages as trainers read them, small columns for everything that rows are compared
by, and the rest of the run as JSON. Columns are made of flat lists, a message never becomes a
dictionary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from palio.corpus.readers.record import events_of
from palio.corpus.rows import SCHEMA as ROW_SCHEMA
from palio.records import (
    DispatchEvent,
    Event,
    FunctionCall,
    Message,
    Record,
    ToolCall,
    Trajectory,
    from_json,
    to_json,
)

TEXTS = ("trajectory_id", "problem_id", "query", "kind", "agent", "run", "format", "losses")
SIGNALS = ("depth", "reformulations", "verification", "regularity")
SMALL = (
    *("trajectory_id", "problem_id", "query", "agent", "format", "key"),
    *SIGNALS,
)
"""What the second stage reads of every row; the rest only of those that are kept."""

_MESSAGES = ROW_SCHEMA.field("messages").type
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in TEXTS[:5]),
        ("messages", _MESSAGES),
        ("tools", pa.dictionary(pa.int32(), pa.string())),
        ("run", pa.string()),
        ("events", pa.binary()),
        ("line", pa.int64()),
        ("format", pa.string()),
        ("losses", pa.string()),
        ("key", pa.binary(16)),
        ("evidence", pa.string()),
        ("axis", pa.string()),
        ("richness", pa.float64()),
        ("emitted", pa.int32()),
        ("dispatched", pa.int32()),
        *((name, pa.float64()) for name in SIGNALS),
    ]
)
"""Explicit, so that no column is inferred from the first rows and none is lost."""


_COLUMNS = frozenset(
    ("trajectory_id", "problem_id", "query", "kind", "messages", "tools", "events")
)
_FIELDS = [field for field in msgspec.structs.fields(Trajectory) if field.name not in _COLUMNS]
OWN_FIELDS = tuple(field.name for field in _FIELDS)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default


Run: Any = msgspec.defstruct(
    "Run",
    [
        *((one.name, one.type, _default(one)) for one in _FIELDS),  # agent is required, so first
        ("by_harness", tuple[str, ...], ()),
        ("rationalised", tuple[int, ...], ()),
    ],
    bases=(Record,),
    frozen=True,
    omit_defaults=False,
)
"""Fields of a trajectory that are no column of their own, whatever fields it has.

Beside them `by_harness`, ids of calls that no completion emitted, where the events follow from the
messages and are not stored; `rationalised`, positions of messages with thinking after the fact.
"""


class Talk(NamedTuple):
    """The messages of one row as columns: `counts` has the calls of each message.

    The first six have an item a message, the last three an item a call.
    """

    roles: Sequence[str]
    contents: Sequence[str | None]
    thoughts: Sequence[str | None]
    counts: Sequence[int]
    answered: Sequence[str | None]
    names: Sequence[str | None]
    ids: Sequence[str]
    tools: Sequence[str]
    arguments: Sequence[str]


def talk_of(messages: Sequence[Message]) -> Talk:
    """Messages as columns."""
    calls = [call for message in messages for call in message.tool_calls]
    return Talk(
        [message.role for message in messages],
        [message.content for message in messages],
        [message.reasoning_content for message in messages],
        [len(message.tool_calls) for message in messages],
        [message.tool_call_id for message in messages],
        [message.name for message in messages],
        [call.id for call in calls],
        [call.function.name for call in calls],
        [call.function.arguments for call in calls],
    )


class Kept(NamedTuple):
    """One row that passed; in the order of `SCHEMA`, `messages` as columns."""

    trajectory_id: str
    problem_id: str
    query: str
    kind: str
    agent: str
    messages: Talk
    tools: str
    run: str
    events: bytes | None
    line: int
    format: str
    losses: str | None
    key: bytes
    evidence: str
    axis: str
    richness: float | None
    emitted: int
    dispatched: int
    depth: float
    reformulations: float
    verification: float
    regularity: float


def run_of(trajectory: Trajectory) -> tuple[str, bytes | None]:
    """The columns `run` and `events`; events that follow from the messages are not stored."""
    harness = tuple(
        event.call_id
        for event in trajectory.events
        if isinstance(event, DispatchEvent) and event.emitted_by is None
    )
    derived = trajectory.events == events_of(trajectory.messages, harness)
    run = Run(
        **{name: getattr(trajectory, name) for name in OWN_FIELDS},
        by_harness=harness if derived else (),
        rationalised=tuple(n for n, m in enumerate(trajectory.messages) if m.rationalised),
    )
    return to_json(run).decode(), None if derived else to_json(trajectory.events)


def conversation_key(messages: Sequence[Message]) -> bytes:
    """16 bytes, equal for conversations that differ in nothing but call ids.

    It is made of what each turn thought, or said where it did not think, and of the request; calls
    and results are left out. So unequal conversations may share a key: rows that do are compared in
    full.
    """
    return key_of(said_in(messages))


def said_in(messages: Sequence[Message]) -> list[str]:
    """What each turn thought, or said where it did not think, and the request."""
    return [
        message.reasoning_content or message.content or ""
        for message in messages
        if message.role != "tool"
    ]


def key_of(said: Sequence[str]) -> bytes:
    """`conversation_key` of what `said_in` gives."""
    return hashlib.sha256("\x1e".join(said).encode()).digest()[:16]


def table_of(rows: Sequence[Kept]) -> pa.Table:
    """Rows as a table of `SCHEMA`; fewer than 2 GB of text together."""
    columns = dict(zip(Kept._fields, zip(*rows, strict=True), strict=True))
    made = []
    for field in SCHEMA:
        held = columns[field.name]
        if field.name == "messages":
            made.append(_messages(held))
        elif field.name == "tools":
            place = {text: number for number, text in enumerate(dict.fromkeys(held))}
            numbers = pa.array([place[text] for text in held], pa.int32())
            made.append(pa.DictionaryArray.from_arrays(numbers, pa.array(place, pa.string())))
        else:
            made.append(pa.array(held, field.type))
    return pa.Table.from_arrays(made, schema=SCHEMA)


def _messages(rows: Sequence[Talk]) -> pa.Array:
    held = [list(chain.from_iterable(column)) for column in zip(*rows, strict=True)]
    columns = Talk(*held)
    text = pa.string()
    function = pa.StructArray.from_arrays(
        [pa.array(columns.tools, text), pa.array(columns.arguments, text)],
        fields=list(_CALL.field("function").type),
    )
    call = pa.StructArray.from_arrays(
        [pa.array(columns.ids, text), pa.repeat(_FUNCTION, len(columns.ids)), function],
        fields=list(_CALL),
    )
    calls = pa.ListArray.from_arrays(
        _offsets(columns.counts), call, type=_MESSAGE.field("tool_calls").type
    )
    message = pa.StructArray.from_arrays(
        [
            pa.array(columns.roles, text),
            pa.array(columns.contents, text),
            pa.array(columns.thoughts, text),
            calls,
            pa.array(columns.answered, text),
            pa.array(columns.names, text),
        ],
        fields=list(_MESSAGE),
    )
    return pa.ListArray.from_arrays(
        _offsets([len(row.roles) for row in rows]), message, type=_MESSAGES
    )


_MESSAGE = _MESSAGES.value_type
_CALL = _MESSAGE.field("tool_calls").type.value_type
_FUNCTION = pa.scalar("function", pa.string())  # a `ToolCall` has no other type


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array([0, *accumulate(lengths)], pa.int32())


_READ = ("trajectory_id", "problem_id", "query", "kind", "tools", "run", "events")


def trajectories_of(table: pa.Table | pa.RecordBatch) -> Iterator[Trajectory]:
    """The trajectories of rows of `SCHEMA`, as they were read."""
    for row, told in zip(
        table.select(_READ).to_pylist(), _conversations(table["messages"]), strict=True
    ):
        run = from_json(row["run"], Run)
        late = frozenset(run.rationalised)
        messages = tuple(
            Message(
                role=role,
                content=content,
                reasoning_content=thought,
                tool_calls=calls,
                tool_call_id=answered,
                name=name,
                rationalised=place in late,
            )
            for place, (role, content, thought, answered, name, calls) in enumerate(told)
        )
        events: tuple[Event, ...] = (
            events_of(messages, run.by_harness)
            if row["events"] is None
            else from_json(row["events"], tuple[Event, ...])
        )
        yield Trajectory(
            **{name: row[name] for name in ("trajectory_id", "problem_id", "query", "kind")},
            **{name: getattr(run, name) for name in OWN_FIELDS},
            events=events,
            messages=messages,
            tools=msgspec.json.decode(row["tools"], type=tuple[dict[str, Any], ...]),
        )


def _conversations(column: pa.ChunkedArray | pa.Array) -> Iterator[list[tuple[Any, ...]]]:
    """The messages of each row by flat lists: dictionaries of nested ones take three times as long.

    A message is (role, content, thinking, id of the call it answers, name, calls).
    """
    rows = _whole(column)
    every = rows.flatten()
    held = every.field("tool_calls")
    calls = held.flatten()
    made = iter(
        [
            ToolCall(id=name, function=FunctionCall(name=tool, arguments=arguments))
            for name, (tool, arguments) in zip(
                calls.field("id").to_pylist(), _functions(calls), strict=True
            )
        ]
    )
    plain = ("role", "content", "reasoning_content", "tool_call_id", "name")
    messages = zip(
        *(every.field(name).to_pylist() for name in plain),
        [tuple(islice(made, count)) for count in _lengths(held)],
        strict=True,
    )
    for count in _lengths(rows):
        yield list(islice(messages, count))


def calls_in(column: pa.ChunkedArray | pa.Array) -> list[list[tuple[str, str]]]:
    """(tool, arguments) of each row's calls in order; other members of messages may be missing."""
    rows = _whole(column)
    held = rows.flatten().field("tool_calls")
    functions = _functions(held.flatten())
    counts = iter(_lengths(held))
    return [list(islice(functions, sum(islice(counts, count)))) for count in _lengths(rows)]


def _functions(calls: pa.StructArray) -> Iterator[tuple[str, str]]:
    function = calls.field("function")
    names, arguments = (function.field(name).to_pylist() for name in ("name", "arguments"))
    return zip(names, arguments, strict=True)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.ListArray:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _lengths(lists: pa.ListArray) -> list[int]:
    counts: list[int] = lists.value_lengths().fill_null(0).to_pylist()
    return counts


_PAGE = 16 << 20


def writer_of(stream: Any, level: int) -> pq.ParquetWriter:
    """A Parquet writer for tables of `SCHEMA`.

    Long texts get neither a dictionary, which they would overflow, nor statistics, which nobody
    asks of them: 2 us a trace. A page is all that a row group has of a column: results repeat, so
    a file is an eighth smaller, and written in 1.2 us a trace less, than with pages of 4 MB, and
    those made it a quarter smaller than pages of 1 MB did. Lower zstd levels are slower here, as
    they find less that repeats.
    """
    long = ("content", "reasoning_content", "tool_call_id", "tool_calls.list.element.id")
    plain = {f"messages.list.element.{name}" for name in long}
    plain.add("messages.list.element.tool_calls.list.element.function.arguments")
    plain |= {"trajectory_id", "query", "run", "events", "line", "losses", "key"}
    leaves = [f"messages.list.element.{name}" for name in ("role", "name")]
    leaves += [
        f"messages.list.element.tool_calls.list.element.{name}"
        for name in ("type", "function.name")
    ]
    leaves += [field.name for field in SCHEMA if field.name != "messages"]
    return pq.ParquetWriter(
        stream,
        SCHEMA,
        compression="zstd",
        compression_level=level,
        use_dictionary=[name for name in leaves if name not in plain],
        write_statistics=False,
        data_page_size=_PAGE,
    )
