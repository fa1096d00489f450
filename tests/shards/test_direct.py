"""The direct way gives what the general one gives, and gives up on whatever is not clean."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from palio.corpus.config import CorpusConfig
from palio.corpus.gates import row_steps
from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards import ShardConfig
from palio.corpus.shards.columns import Kept, table_of, trajectories_of
from palio.corpus.shards.config import STEPS
from palio.corpus.shards.direct import DirectReader
from palio.corpus.shards.passing import GATES
from palio.corpus.shards.screen import Screen, ShardReject
from palio.records import to_json
from tests.shards.edits import edits
from tests.shards.making import LENIENT, TOOLS, chat_row, write_rows

FILE = "data/rows.jsonl"


def screened(lines: list[bytes], config: ShardConfig, *, direct: bool) -> tuple[Any, ...]:
    """Everything that screening gives, in comparable form."""
    screen = Screen(FILE, config, direct=direct)
    rows: list[Kept | ShardReject] = []
    for number, line in enumerate(lines, start=1):
        rows += screen.take(RawRecord(number, line))
    rows += screen.end()
    plain = [
        (*row[:5], to_json(row.messages), *row[6:]) if isinstance(row, Kept) else to_json(row)
        for row in rows
    ]
    counts = (screen.rows, screen.formats, screen.losses, screen.rejected)
    return (plain, *counts)


def same(lines: list[bytes], config: ShardConfig = LENIENT) -> tuple[Any, ...]:
    """Both ways must agree; gives what they agree on."""
    one, other = (screened(lines, config, direct=direct) for direct in (True, False))
    assert one == other
    return one


def served(line: bytes) -> bool:
    """Whether the direct way reads a line at all."""
    steps = [step for step in row_steps() if step[0] in STEPS]
    return DirectReader(FILE, LENIENT.corpus, steps).read(RawRecord(1, line)) is not None


def encoded(row: Any) -> bytes:
    return json.dumps(row).encode()


def test_the_fused_gates_are_the_gates_of_today() -> None:
    names = {gate.__name__ for step, gates in row_steps() if step in STEPS for gate in gates}
    assert names <= GATES, "palio.corpus.shards.passing must learn the new gate"


def test_clean_rows_are_served_and_equal() -> None:
    lines = [encoded(chat_row(number)) for number in range(40)]
    assert all(served(line) for line in lines)
    plain, rows, *_ = same(lines)
    assert rows == 40
    assert all(isinstance(row, tuple) for row in plain)


def test_spacing_escapes_and_key_order_do_not_matter() -> None:
    row = chat_row(3)
    turned = dict(reversed(row.items()))
    compact = json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode()
    lines = [encoded(row), encoded(turned), compact, json.dumps(row, indent=1).encode()]
    plain, *_ = same(lines)
    assert len({bytes(one[5]) for one in plain}) == 1


def test_rows_of_different_tools_follow_each_other() -> None:
    flat = [{"type": "function", "name": "find_product"}]
    offers: list[Any] = [TOOLS, TOOLS, flat, TOOLS, None, [], json.dumps(TOOLS), TOOLS, 7, "{"]
    same([encoded(chat_row(number, tools=tools)) for number, tools in enumerate(offers)])
    without = chat_row(1)
    del without["tools"]
    same([encoded(chat_row(0)), encoded(without), encoded(chat_row(2))])


def test_tools_inside_a_text_are_no_tools() -> None:
    text = json.dumps(TOOLS)
    row = chat_row(1, tools=None)
    row["messages"][0]["content"] = text
    quoted = encoded(row)
    spliced = quoted[:-1] + b', "kind": ' + text.encode() + b"}"
    same([encoded(chat_row(0)), encoded(chat_row(0)), quoted, spliced])


EDITS = edits()
CONFIGS = tuple(
    replace(LENIENT, corpus=replace(LENIENT.corpus, **changes))
    for changes in (
        {},
        {"token_budget": 1_500},
        {"token_budget": 1_500, "count_tools": False},
        {"format": False, "grounding": False},
        {"evidence": ("verified",)},
        {"axes": ("unknown",), "terminal_tools": ()},
        {"thinking": 1.0},
    )
)


@pytest.mark.parametrize("number", range(len(EDITS)))
def test_each_edit_alone(number: int) -> None:
    rows = []
    for edit in (EDITS[number], lambda _: None):
        row = copy.deepcopy(chat_row(0))
        edit(row)
        rows.append(encoded(row))
    for config in CONFIGS[:2]:
        same([rows[1], rows[0], rows[1]], config)


@given(
    st.lists(st.lists(st.integers(0, len(EDITS) - 1), max_size=3), min_size=1, max_size=4),
    st.sampled_from(CONFIGS),
)
@settings(max_examples=150)
def test_edits_together(numbers: list[list[int]], config: ShardConfig) -> None:
    lines = []
    for place, some in enumerate(numbers):
        row = copy.deepcopy(chat_row(place))
        for number in some:
            try:
                EDITS[number](row)
            except (KeyError, IndexError, TypeError, AttributeError):
                continue
        lines.append(encoded(row))
    same(lines, config)


@given(st.data())
@settings(max_examples=100)
def test_broken_bytes(data: st.DataObject) -> None:
    line = encoded(chat_row(data.draw(st.integers(0, 20))))
    start = data.draw(st.integers(0, len(line)))
    stop = min(len(line), start + data.draw(st.integers(0, 3)))
    same([line, line[:start] + data.draw(st.binary(max_size=3)) + line[stop:], line])


def test_shards_read_what_an_import_reads(tmp_path: Path) -> None:
    """Both ways against the reader that everybody else uses: the same trajectories and rejects."""
    rows = [chat_row(number) for number in range(12)]
    rows[4]["messages"][8]["content"] = None
    path = write_rows(tmp_path / "rows.jsonl", [*rows, b"{", {"no": "trace"}])
    imported = TraceImport([path])
    expected = [found.trajectory for found in imported]
    screen = Screen(str(path), LENIENT)
    lines = enumerate(path.read_bytes().splitlines(), start=1)
    got = [row for number, line in lines for row in screen.take(RawRecord(number, line))]
    kept = [row for row in got if isinstance(row, Kept)]
    read = list(trajectories_of(table_of(kept)))
    assert read == expected
    rejects = [row for row in got if isinstance(row, ShardReject)]
    assert [(r.line, r.reason) for r in rejects] == [
        (r.line, f"unreadable_{r.reason}") for r in imported.rejects
    ]
    assert screen.losses == imported.losses == Counter({"null_content": 1})


def test_every_gate_can_be_met() -> None:
    """The rejects that both ways agree on are many kinds, not one."""
    reasons: Counter[str] = Counter()
    for edit in EDITS:
        row = copy.deepcopy(chat_row(0))
        edit(row)
        reasons += screened([encoded(row)], CONFIGS[0], direct=True)[4]
    assert len(reasons) >= 12, reasons


def test_a_gate_that_is_not_known_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palio.corpus.shards.passing.GATES", frozenset())
    plain, *_ = same([encoded(chat_row(number)) for number in range(3)])
    assert all(isinstance(row, tuple) for row in plain)


def test_fields_of_a_trajectory_are_all_kept() -> None:
    """A field that is added to trajectories is stored without anybody thinking of it."""
    from palio.corpus.shards.columns import SCHEMA, Run
    from palio.records import Trajectory

    stored = {*SCHEMA.names, *Run.__struct_fields__}
    assert {field.name for field in msgspec.structs.fields(Trajectory)} <= stored


def test_strict_gates_still_reject(tmp_path: Path) -> None:
    config = ShardConfig(corpus=CorpusConfig(token_budget=100))
    plain, *_ = same([encoded(chat_row(0))], config)
    assert json.loads(plain[0])["reason"] == "over_budget"
