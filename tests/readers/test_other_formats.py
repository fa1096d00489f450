"""Responses items, ShareGPT, RL dumps, evaluation rows, pairs and bare completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palio.corpus.readers.importing import TraceImport
from tests.readers.making import QUERY, calls, codes, read

FIND = {"name": "find_product", "arguments": {"q": "mug"}}
TAGGED = f"<tool_call>\n{json.dumps(FIND)}\n</tool_call>"
WANTED = [("find_product", {"q": "mug"}), ("view_product_information", {"product_ids": "1"})]


def roles(found: Any) -> list[str]:
    return [message.role for message in found.trajectory.messages]


def call_item(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def output_item(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


@pytest.mark.parametrize("inside", ["input", "items", "messages", "list"])
def test_responses_items_become_turns(tmp_path: Path, inside: str) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": QUERY}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "two"}]},
        call_item("a", *WANTED[0]),
        call_item("b", *WANTED[1]),
        output_item("b", [{"type": "input_text", "text": "seen"}]),
        output_item("a", "found"),
        {"type": "web_search_call", "id": "w"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "1", "annotations": []}],
        },
    ]
    row: Any = items if inside == "list" else {inside: items}
    (found,) = read(tmp_path, row)
    assert roles(found) == ["user", "assistant", "tool", "tool", "assistant"]
    assert calls(found.trajectory) == WANTED
    assert found.trajectory.messages[1].reasoning_content == "two"
    assert [(d.tool, d.result) for d in found.trajectory.dispatches] == [
        ("find_product", "found"),
        ("view_product_information", "seen"),
    ]
    assert found.trajectory.messages[-1].content == "1"
    assert codes(found) == ["item"]


def test_a_response_object_with_instructions(tmp_path: Path) -> None:
    row = {
        "object": "response",
        "id": "resp",
        "model": "m",
        "instructions": "You shop.",
        "input": QUERY,
        "output": [call_item("a", *WANTED[0])],
        "tools": [{"type": "function", "name": "find_product", "parameters": {}}],
    }
    (found,) = read(tmp_path, row)
    assert roles(found) == ["system", "user", "assistant"]
    assert found.trajectory.tools[0]["function"]["name"] == "find_product"
    assert (found.trajectory.trajectory_id, found.trajectory.agent.model) == ("resp", "m")
    assert codes(found) == []


def test_sharegpt_with_calls_as_turns_and_as_tags(tmp_path: Path) -> None:
    turns = [
        ("human", QUERY),
        ("function_call", json.dumps(FIND)),
        ("observation", "found"),
        ("gpt", f"<think>\nlook\n</think>\n{TAGGED}"),
        ("tool", "<tool_response>\nfound\n</tool_response>"),
        ("gpt", "1"),
    ]
    row = {
        "system": "You shop.",
        "conversations": [{"from": who, "value": what} for who, what in turns],
        "tools": json.dumps([{"name": "find_product", "parameters": {}}]),
    }
    (found,) = read(tmp_path, row)
    assert roles(found) == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant"),
    ]
    assert calls(found.trajectory) == [WANTED[0], WANTED[0]]
    assert [d.result for d in found.trajectory.dispatches] == ["found", "found"]
    assert found.trajectory.messages[4].reasoning_content == "look"
    assert found.trajectory.tools[0]["function"]["name"] == "find_product"
    assert codes(found) == ["paired_by_position"]


def test_parallel_calls_of_sharegpt_are_one_turn(tmp_path: Path) -> None:
    both = [{"from": "function_call", "value": json.dumps(FIND)} for _ in range(2)]
    results = [{"from": "observation", "value": str(n)} for n in range(2)]
    (found,) = read(tmp_path, {"conversations": [{"from": "human", "value": "q"}, *both, *results]})
    assert roles(found) == ["user", "assistant", "tool", "tool"]
    assert [d.result for d in found.trajectory.dispatches] == ["0", "1"]


SYSTEM = (
    "You shop.\n\n# Tools\n\nYou may call one or more functions.\n<tools>\n"
    + json.dumps({"type": "function", "function": {"name": "find_product", "parameters": {}}})
    + "\n</tools>\n\nFor each function call, return a json object."
)


@pytest.mark.parametrize("marks", ["chatml", "bare"])
def test_a_dump_of_a_rendered_chat(tmp_path: Path, marks: str) -> None:
    def turn(role: str, body: str, closed: bool = True) -> str:
        if marks == "bare":
            return f"{role}\n{body}" + ("\n" if closed else "")
        return f"<|im_start|>{role}\n{body}" + ("<|im_end|>\n" if closed else "")

    row = {
        "input": turn("system", SYSTEM) + turn("user", QUERY) + turn("assistant", "", False),
        "output": f"<think>\nlook\n</think>\n\n{TAGGED}"
        + ("\n" if marks == "bare" else "<|im_end|>\n")
        + turn("user", "<tool_response>\nfound\n</tool_response>")
        + turn("assistant", "1"),
        "score": 0.0,
        "step": 12,
    }
    (found,) = read(tmp_path, row)
    assert [(m.role, m.content) for m in found.trajectory.messages] == [
        ("system", "You shop."),
        ("user", QUERY),
        ("assistant", None),
        ("tool", "found"),
        ("assistant", "1"),
    ]
    assert calls(found.trajectory) == [WANTED[0]]
    assert found.trajectory.tools[0]["function"]["name"] == "find_product"
    guessed = ["roles_guessed"] if marks == "bare" else []
    assert codes(found) == [*guessed, "tools_from_prompt", "not_carried", "not_carried"]


def test_plain_dumps_and_dumps_with_messages(tmp_path: Path) -> None:
    plain, listed = read(
        tmp_path,
        {"input": "asked", "output": f"{TAGGED}<|im_end|>", "score": 1.0},
        {"input": [{"role": "user", "content": QUERY}], "output": "1"},
    )
    assert roles(plain) == roles(listed) == ["user", "assistant"]
    assert calls(plain.trajectory) == [WANTED[0]]


def test_evaluation_rows_with_results(tmp_path: Path) -> None:
    sample = {
        "output_tools": [
            {"name": "find_product", "arguments": '{"q":"mug"}', "result": [{"product_id": "1"}]},
            {"function": {"name": "terminate", "arguments": None}},
            5,
        ],
        "recommended_product_ids": "1",
        "terminated": True,
    }
    (found,) = read(
        tmp_path, {"name": "x", "query": QUERY, "sample": sample, "grade": {"score": 0}}
    )
    assert calls(found.trajectory) == [("find_product", {"q": "mug"}), ("terminate", {})]
    assert [d.result for d in found.trajectory.dispatches] == ['[{"product_id":"1"}]']
    assert (found.trajectory.answer, found.trajectory.problem_id) == ("1", "x")
    assert codes(found) == ["null_arguments", "call_shape", "turns_unknown", "not_carried"]


def test_pairs_and_exchanges(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": FIND}]}
    pair, text, exchange = read(
        tmp_path,
        {"prompt": [{"role": "user", "content": QUERY}], "completion": [said], "label": True},
        {"prompt": "asked", "completion": "said"},
        {
            "request": {"messages": [{"role": "user", "content": QUERY}], "temperature": 0},
            "response": {"model": "m", "choices": [{"message": said}, {"message": said}]},
        },
    )
    assert calls(pair.trajectory) == calls(exchange.trajectory) == [WANTED[0]]
    assert [m.content for m in text.trajectory.messages] == ["asked", "said"]
    assert exchange.trajectory.query == QUERY
    assert codes(pair) == ["unknown_key"]
    assert codes(exchange) == ["unknown_key", "further_choice"]


def test_nulls_that_columns_put_into_arguments_are_taken_out(tmp_path: Path) -> None:
    def row(arguments: Any) -> dict[str, Any]:
        call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
        return {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}

    table = pa.Table.from_pylist([row({"q": "mug"}), row({"product_ids": "1"})])
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    found = list(TraceImport([path]))
    assert [calls(f.trajectory) for f in found] == [
        [("f", {"q": "mug"})],
        [("f", {"product_ids": "1"})],
    ]
    assert [codes(f) for f in found] == [["null_argument"], ["null_argument"]]
    path.write_bytes(path.read_bytes()[:-20])
    reader = TraceImport([path])
    assert not list(reader)
    assert [r.reason for r in reader.rejects] == ["parquet"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"content": "None", "tool_calls": [{"function": FIND}]}, "printed_none"),
        ({"content": None, "function_call": FIND, "tool_calls": [{"function": FIND}]}, None),
        ({"content": None, "tool_calls": json.dumps([{"function": FIND}])}, None),
        ({"content": None, "tool_calls": [{"name": "find_product", "args": {"q": "mug"}}]}, None),
        ({"content": None, "reasoning_content": None, "reasoning": "hm", "tool_calls": [FIND]},
         None),
        ({"content": None, "thinking": "hm", "reasoning": "other", "tool_calls": [FIND]},
         "second_reasoning"),
    ],
)  # fmt: skip
def test_dialects_of_one_call(tmp_path: Path, message: dict[str, Any], code: str | None) -> None:
    (found,) = read(tmp_path, {"messages": [{"role": "Assistant", **message}]})
    assert calls(found.trajectory) == [WANTED[0]]
    assert found.trajectory.messages[0].content is None
    assert code in codes(found) if code else set(codes(found)) <= {"mirrored_call"}
    if "reasoning" in message and code is None:
        assert found.trajectory.messages[0].reasoning_content == "hm"


def test_results_by_id_by_name_and_late(tmp_path: Path) -> None:
    two = [
        {"id": i, "function": {"name": n, "arguments": "{}"}} for i, n in (("a", "f"), ("b", "g"))
    ]
    row = {
        "messages": [
            {"role": "user", "content": QUERY},
            {"role": "assistant", "content": None, "tool_calls": two},
            {"role": "tool", "name": "g", "content": "of g"},
            {"role": "tool", "tool_call_id": "a", "content": None},
            {"role": "assistant", "content": "x"},
            {"role": "tool", "tool_call_id": "b", "content": "late"},
        ]
    }
    (found,) = read(tmp_path, row)
    assert [(d.tool, d.result) for d in found.trajectory.dispatches] == [("f", ""), ("g", "of g")]
    assert codes(found) == ["paired_by_name", "null_content", "orphan_result"]
    assert found.trajectory.messages[-1].tool_call_id == "b"
