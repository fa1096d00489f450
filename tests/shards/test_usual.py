"""Rows of the usual shape say what they say as plain messages; whatever is unusual is read too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palio.corpus.conversation import parse_arguments
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards.calls import parsed_of
from palio.corpus.shards.clean import CleanMessage, CleanRow, told_of
from palio.corpus.shards.columns import conversation_key, key_of
from palio.corpus.shards.screen import Screen, ShardReject
from palio.corpus.shards.usual import UsualRow, told_of_usual
from palio.records import to_json
from tests.shards.edits import edits
from tests.shards.making import LENIENT, chat_row
from tests.shards.test_direct import same

_clean = msgspec.json.Decoder(CleanRow[CleanMessage]).decode
_usual = msgspec.json.Decoder(UsualRow).decode
EDITS = edits()


def decoded(decode: Any, line: bytes) -> Any:
    """The row, None where it is of another shape."""
    try:
        return decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def test_both_shapes_say_the_same() -> None:
    both = 0
    for edit in EDITS:
        row = copy.deepcopy(chat_row(2))
        edit(row)
        line = json.dumps(row).encode()
        usual, clean = decoded(_usual, line), decoded(_clean, line)
        if usual is None:
            continue
        assert clean is not None, row
        assert to_json(usual.messages) == to_json(clean.messages)
        one, other = told_of_usual(usual.messages), told_of(clean.messages)
        assert one == other
        if one is not None:
            assert key_of(one.said) == conversation_key(clean.messages)
            both += 1
    assert both > 100


def test_clean_rows_of_another_shape_are_read_too() -> None:
    """Null and empty members, as models dump them: clean, but no row of the usual shape."""
    lines = []
    for number in range(60):
        row = chat_row(number)
        if number % 29 > 3:  # enough in a row that the usual shape is given up
            row["messages"] = [{"name": None, "rationalised": False, **m} for m in row["messages"]]
        lines.append(json.dumps(row).encode())
    assert decoded(_usual, lines[10]) is None
    assert decoded(_clean, lines[10]) is not None
    plain, rows, *_ = same(lines)
    assert rows == 60
    assert all(isinstance(row, tuple) for row in plain)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"role": "tool",', b'{"role": "user", "role": "tool",'),
        (b'{"role": "tool",', b'{"role": "tool", "role": "assistant",'),
        (b'{"role": "user",', b'{"role": "user", "role": "user",'),
        (b'{"role": "user",', b'{"content": "first", "role": "user",'),
        (b'"content": null,', b'"content": "b", "content": null,'),
        (b'"tool_call_id": "c1",', b'"tool_call_id": "c0", "tool_call_id": "c1",'),
        (b'"arguments": ', b'"arguments": "{}", "arguments": '),
    ],
)
def test_repeated_keys(old: bytes, new: bytes) -> None:
    line = json.dumps(chat_row(0)).encode()
    assert old in line
    same([line, line.replace(old, new, 1), line.replace(old, new), line])


@given(st.sampled_from([0, 1, 2, 3]), st.lists(st.sampled_from(["find_product", "other"])))
def test_dropped_without_the_gates(recommendations: int, others: list[str]) -> None:
    """What drops a row before its trajectory is made drops it with the same words."""
    row = chat_row(0)
    for place, name in enumerate([*["recommend_product"] * recommendations, *others]):
        call = {"id": f"x{place}", "function": {"name": name, "arguments": "{}"}}
        row["messages"].append({"role": "assistant", "tool_calls": [call]})
        row["messages"].append({"role": "tool", "tool_call_id": f"x{place}", "content": "[]"})
    (plain,), *_ = same([json.dumps(row).encode()])
    if recommendations:
        assert json.loads(plain)["detail"] == f"{recommendations + 1} calls"


def test_a_recommendation_that_is_missing(tmp_path: Path) -> None:
    row = chat_row(0)
    del row["messages"][5:7]
    line = json.dumps(row).encode()
    same([line])
    (read,) = Screen("rows.jsonl", LENIENT).take(RawRecord(3, line))
    assert isinstance(read, ShardReject)
    assert (read.line, read.reason, read.detail) == (3, "recommend_missing", "0 calls")


TEXTS = st.one_of(
    st.sampled_from(
        ["{}", '{"a":1', '"b":2}', "{},{}", '{"a":[1', "2]}", "[]", "", " {} ", '{"a":"', '"}', "]"]
    ),
    st.dictionaries(st.text(max_size=3), st.one_of(st.text(max_size=3), st.integers())).map(
        json.dumps
    ),
    st.text(alphabet='{}[]",:1 a', max_size=6),
)


@given(st.lists(TEXTS, min_size=1, max_size=5))
@example(["{},{}"])
@example(["{},{}", ""])
def test_arguments_read_together_are_those_read_alone(texts: list[str]) -> None:
    alone = [parse_arguments(arguments) for arguments in texts]
    assert parsed_of(texts) == (None if None in alone else alone)
