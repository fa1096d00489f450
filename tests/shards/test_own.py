"""Palio's own trajectories: the direct way gives what the general one gives, record and all."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from palio.corpus.gates import row_steps
from palio.corpus.readers.reading import RecordReader
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards import ShardJob, make_shard
from palio.corpus.shards.columns import Kept, table_of, trajectories_of
from palio.corpus.shards.config import STEPS
from palio.corpus.shards.own import OwnReader
from palio.records import DispatchEvent, InferenceEvent, Trajectory, Usage, from_json, to_json
from tests.shards.edits import ROLES, at, edits, without
from tests.shards.making import LENIENT, chat_row, write_rows
from tests.shards.test_direct import CONFIGS, same
from tests.shards.test_engine import files_of


def trajectory_of(row: dict[str, Any]) -> Trajectory:
    """A chat row as palio holds it; its events follow from its messages."""
    reader = RecordReader("chat", 1 << 20)
    (found,) = reader.read("day", RawRecord(1, json.dumps(row).encode()))
    return found.trajectory


def recorded(trajectory: Trajectory) -> Trajectory:
    """The same as a broker records it: with times, usage and proofs."""
    events: list[Any] = []
    for event in trajectory.events:
        timed = replace(event, at_ms=event.seq + 0.5, duration_ms=0.25)
        if isinstance(timed, InferenceEvent):
            timed = replace(timed, usage=Usage(prompt_tokens=9), params={"seed": 1, "top_p": 0.5})
        elif isinstance(timed, DispatchEvent):
            timed = replace(timed, nonce="valid")
        events.append(timed)
    return replace(trajectory, events=tuple(events), source="rollout", duration_s=1.5, seed=3)


def rows_of(number: int) -> list[dict[str, Any]]:
    """The two kinds of one row as JSON data."""
    made = trajectory_of(chat_row(number))
    return [json.loads(to_json(one)) for one in (made, recorded(made))]


def encoded(row: Any) -> bytes:
    """As palio writes it."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def served(line: bytes) -> bool:
    """Whether the direct way reads a line at all."""
    steps = [step for step in row_steps() if step[0] in STEPS]
    return OwnReader(LENIENT.corpus, steps).read(RawRecord(1, line)) is not None


def test_clean_rows_are_served_and_equal() -> None:
    lines = [encoded(row) for number in range(12) for row in rows_of(number)]
    assert all(served(line) for line in lines)
    plain, rows, formats, *_ = same(lines)
    assert rows == formats["palio"] == 24
    assert all(isinstance(row, tuple) for row in plain)


def test_white_space_and_escapes_do_not_matter() -> None:
    for row in rows_of(3):
        spaced = json.dumps(row).encode()
        laid_out = json.dumps(row, indent=1).encode()
        same([encoded(row), spaced, laid_out, encoded(dict(reversed(row.items()))), spaced])


def test_rows_come_back_as_they_were() -> None:
    trajectories = [from_json(encoded(row), Trajectory) for n in range(5) for row in rows_of(n)]
    lines = [to_json(one) for one in trajectories]
    steps = [step for step in row_steps() if step[0] in STEPS]
    reader = OwnReader(LENIENT.corpus, steps)
    kept = [
        row for n, line in enumerate(lines, 1) if isinstance(row := _read(reader, n, line), Kept)
    ]
    assert [row.events is None for row in kept] == [True, False] * 5
    assert list(trajectories_of(table_of(kept))) == trajectories


def _read(reader: OwnReader, number: int, line: bytes) -> Any:
    return reader.read(RawRecord(number, line))


VALUES: tuple[Any, ...] = ("", None, "v", 5, 0.0, True, [], ["v"], {}, "\0", "1001", ["1001"], 1001)
EVENTS: tuple[Any, ...] = (*VALUES, "terminate", "{}", "valid", "missing", ["late"], {"a": [1.0]})
EVENT_KEYS = (
    *("type", "seq", "at_ms", "duration_ms", "prefix", "request", "completion", "params"),
    *("finish_reason", "usage", "fault", "tool", "arguments", "result", "call_id", "emitted_by"),
    *("error", "warnings", "nonce", "echoed", "unknown"),
)


def own_edits() -> list[Any]:
    """Changes to what only palio's own rows have."""
    keys = [*(field.name for field in msgspec.structs.fields(Trajectory)), "unknown"]
    made: list[Any] = [at(key, value=v) for key in keys for v in VALUES]
    made += [without(key) for key in keys]
    made += [at("ending", value=v) for v in ("infra", "terminated", "step_limit", "nothing")]
    made += [at("source", value=v) for v in ("salvage:x", "chat:day")]
    made += [at("fault", value={"code": code, "what": "w"}) for code in (1001, 2001, 3001, 7)]
    made += [
        at("differences", value=[v])
        for v in ("claims another result of x", "a call that never happened", "a note")
    ]
    made += [at("agent", key, value=v) for key in ("name", "kind", "unknown") for v in VALUES]
    made += [at("events", n, key, value=v) for n in (0, 1, 5) for key in EVENT_KEYS for v in EVENTS]
    made += [at("events", 0, "completion", "role", value=role) for role in ROLES]
    made += [lambda row, n=n: row["events"].pop(n) for n in (0, 1, 7)]
    made += [lambda row: row["events"].reverse(), lambda row: row["events"].append({})]
    made += [lambda row: row["events"].append(copy.deepcopy(row["events"][5]))]
    made += [lambda row: row["tools"].append({"function": {}})]
    made += [lambda row: row["tools"].append({"function": "find_product"})]
    return made


EDITS = [*own_edits(), *edits()]


def edited(row: dict[str, Any], numbers: list[int]) -> bytes:
    """A row after some changes; those that do not fit change nothing."""
    row = copy.deepcopy(row)
    for number in numbers:
        try:
            EDITS[number](row)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    return encoded(row)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("part", range(8))
def test_each_edit_alone(kind: int, part: int) -> None:
    plain = rows_of(1)[kind]
    lines: list[bytes] = []
    for number in range(part, len(EDITS), 8):
        lines += [edited(plain, [number]), encoded(plain)]
    for config in CONFIGS[:2]:
        same(lines, config)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1]), st.lists(st.integers(0, len(EDITS) - 1), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(CONFIGS),
)
@settings(max_examples=100)
def test_edits_together(changes: list[tuple[int, list[int]]], config: Any) -> None:
    same([edited(rows_of(n)[kind], some) for n, (kind, some) in enumerate(changes)], config)


@given(st.data())
@settings(max_examples=60)
def test_broken_bytes(data: st.DataObject) -> None:
    line = encoded(rows_of(data.draw(st.integers(0, 9)))[data.draw(st.integers(0, 1))])
    start = data.draw(st.integers(0, len(line)))
    stop = min(len(line), start + data.draw(st.integers(0, 3)))
    same([line, line[:start] + data.draw(st.binary(max_size=3)) + line[stop:], line])


@pytest.mark.parametrize("nonce", ["", "valid", "mismatch"])
@pytest.mark.parametrize("emitted", [0, None])
@pytest.mark.parametrize("echoed", [False, True])
def test_who_emitted_the_calls(nonce: str, emitted: int | None, echoed: bool) -> None:
    row = rows_of(2)[1]
    row["events"][1] |= {"nonce": nonce, "emitted_by": emitted, "echoed": echoed}
    for config in CONFIGS:
        same([encoded(row)], config)


def test_chat_rows_that_begin_alike_are_read_too() -> None:
    chat = [{"trajectory_id": f"t{n}", **chat_row(n)} for n in range(40)]
    for row in chat:
        del row["id"]
    plain, rows, formats, *_ = same([*map(encoded, chat), *map(encoded, rows_of(1))])
    assert rows == 42
    assert formats == {"chat": 40, "palio": 2}
    assert all(isinstance(row, tuple) for row in plain)


def test_both_ways_make_the_same_bytes(tmp_path: Path) -> None:
    rows = [encoded(row) for n in range(30) for row in rows_of(n)]
    rows[4] = edited(rows_of(2)[0], [0, 40])
    path = write_rows(tmp_path / "day.jsonl", rows)
    for name, direct in (("direct", True), ("general", False)):
        make_shard(ShardJob("day", str(path), str(tmp_path / name), LENIENT, direct))
    assert files_of(tmp_path / "direct") == files_of(tmp_path / "general")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("fault", {"code": 7, "what": "w"}, "unreadable_type"),
        ("tools", [{"function": "x"}], "malformed_tools"),
    ],
    ids=["a fault of no known party", "a text where a function should be"],
)
def test_a_row_that_a_gate_cannot_look_at_is_a_reject(key: str, value: Any, reason: str) -> None:
    (_,), rows, _, _, rejected = same([encoded({**rows_of(1)[1], key: value})])
    assert (rows, rejected) == (1, {reason: 1})
