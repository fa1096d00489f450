"""A row comes back from JSONL and from Parquet with the very messages that went in."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palio.corpus.rows import CorpusRow, RowWriter, read_rows, row_of
from palio.records import FunctionCall, InputError, Message, ToolCall
from tests.corpus.making import TOOLS, made_trajectory
from tests.suites.making import made_problem

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.builds(ToolCall, id=TEXT, function=st.builds(FunctionCall, name=TEXT, arguments=TEXT))
MESSAGES = st.one_of(
    st.builds(Message, role=st.just("user"), content=TEXT),
    st.builds(Message, role=st.just("tool"), content=TEXT, tool_call_id=TEXT),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.none() | TEXT,
        reasoning_content=st.none() | TEXT,
        tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    ),
)


def written(folder: Path, rows: list[CorpusRow]) -> None:
    writer = RowWriter(folder, "train")
    for row in rows:
        writer.write(row)
    writer.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(MESSAGES, max_size=4).map(tuple), max_size=4))
def test_both_files_give_back_the_same_messages(
    tmp_path: Path, conversations: list[tuple[Message, ...]]
) -> None:
    problem = made_problem("p", ("1",))
    base = made_trajectory("t", problem)
    rows = [row_of(msgspec.structs.replace(base, messages=m), "c") for m in conversations]
    written(tmp_path, rows)
    for name in ("train.jsonl", "train.parquet"):
        back = list(read_rows(tmp_path / name))
        assert back == rows, name
        assert [row.typed() for row in back] == conversations, name


def test_many_row_groups_keep_order_and_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palio.corpus.rows.BATCH_BYTES", 4000)
    problem = made_problem("p", ("1",))
    rows = [row_of(made_trajectory(f"t{n}", problem), "c") for n in range(40)]
    written(tmp_path, rows)
    assert pq.read_metadata(tmp_path / "train.parquet").num_row_groups > 5
    back = list(read_rows(tmp_path / "train.parquet"))
    assert back == rows
    assert back[0].offered == TOOLS


def test_the_json_form_is_what_trainers_read(tmp_path: Path) -> None:
    problem = made_problem("p", ("1",))
    written(tmp_path, [row_of(made_trajectory("t", problem), "c")])
    row = json.loads((tmp_path / "train.jsonl").read_text())
    assert list(row) == [
        "messages",
        "tools",
        "trajectory_id",
        "problem_id",
        "cluster_id",
        "agent",
        "kind",
    ]
    user, first, result = row["messages"][:3]
    assert set(user) == {"role", "content"}
    assert set(result) == {"role", "content", "tool_call_id"}
    assert first["content"] is None
    assert first["tool_calls"][0]["type"] == "function"
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"q": "blue mug"}
    schemas = json.loads(row["tools"])
    assert [set(t["function"]["parameters"]["properties"]) for t in schemas] == [
        {f"only_{t['function']['name']}"} for t in schemas
    ]


def test_a_long_row_is_written(tmp_path: Path) -> None:
    problem = made_problem("p", ("1",))
    base = made_trajectory("t", problem)
    long = Message(role="user", content="x\n\u2028" * 4_000_000)
    row = row_of(msgspec.structs.replace(base, messages=(long,)), "c")
    written(tmp_path, [row])
    assert list(read_rows(tmp_path / "train.parquet")) == [row]
    assert list(read_rows(tmp_path / "train.jsonl")) == [row]


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such corpus file"):
        list(read_rows(tmp_path / "train.jsonl"))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": 1}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl:1"):
        list(read_rows(bad))
