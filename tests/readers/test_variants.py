"""What formats.md calls optional is missing, renamed or of another type, and nothing is lost.

Each variant is written by hand; what it must give is (calls with arguments, what was said).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palio.records import Ending
from tests.readers.making import QUERY, calls, imported, lines

CALL = {"name": "find_product", "parameters": {"q": "blue mug"}, "tool_call_id": "a"}
ROWS = [{"product_id": "1"}]
DONE = {**CALL, "result": ROWS}
ASKED = [("find_product", {"q": "blue mug"})]
EXTRA = {"step": 1, "query": QUERY, "timestamp": 1000}
TAGGED = f"<think>t</think><tool_call>{json.dumps([{'name': 'find_product', 'parameters': CALL['parameters']}])}</tool_call>"  # noqa: E501
HERMES = '<tool_call>{"name":"find_product","arguments":{"q":"blue mug"}}</tool_call>'
USER = {"role": "user", "content": QUERY}


def step(message: Any, content: Any = "", **more: Any) -> dict[str, Any]:
    return {"completion": {"content": content, "message": message}, "extra_info": EXTRA, **more}


def proxied(*logged: dict[str, Any]) -> list[Any]:
    extra = {**EXTRA, "proxy_calls": list(logged)}
    return [{**step({"think": "t", "tool_call": [DONE]}), "extra_info": extra}]


def logged(**more: Any) -> dict[str, Any]:
    return {"method": "GET", "path": "/search/find_product", "timestamp": 500, **more}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": text}], **more}


def atif(agent: dict[str, Any], **more: Any) -> dict[str, Any]:
    steps = [{"source": "user", "message": QUERY}, {"source": "agent", **agent}]
    return {"schema_version": "ATIF-v1.7", "agent": {"name": "a"}, "steps": steps, **more}


def graded(**sample: Any) -> dict[str, Any]:
    return {"name": "shop-1-rollout-2", "query": QUERY, "sample": sample}


CALLED = {"tool_calls": [{"function_name": "find_product", "arguments": {"q": "blue mug"}}]}
NESTED = {"function": {"name": "find_product", "arguments": {"q": "blue mug"}}}
VARIANTS: dict[str, tuple[str, Any]] = {
    # 1 envelope
    "envelope without status": ("arena-envelope", {"dialogue": [step({"tool_call": [DONE]})]}),
    "envelope, status in lower case": (
        "arena-envelope",
        {"problem_id": "p", "status": "success", "dialogue": [step({"tool_call": [DONE]})]},
    ),
    "envelope whose dialogue is text": (
        "arena-envelope",
        {"problem_id": "p", "dialogue": json.dumps([step({"tool_call": [DONE]})])},
    ),
    "envelope with null counters": (
        "arena-envelope",
        {"problem_id": "p", "status": "SUCCESS", "inference_total": None, "error": None,
         "dialogue": [step({"tool_call": [DONE]})]},
    ),
    # 2 steps
    "one call, not in a list": ("arena-dialogue", [step({"tool_call": DONE})]),
    "calls as JSON text": ("arena-dialogue", [step({"tool_call": json.dumps([DONE])})]),
    "arguments for parameters": (
        "arena-dialogue",
        [step({"tool_call": [{"name": "find_product", "arguments": {"q": "blue mug"}}]})],
    ),
    "parameters as JSON text": (
        "arena-dialogue",
        [step({"tool_call": [{**DONE, "parameters": '{"q": "blue mug"}'}]})],
    ),
    "no message, tags alone": ("arena-dialogue", [step(None, TAGGED)]),
    "a completion that is text": (
        "arena-dialogue", [{"completion": TAGGED, "extra_info": EXTRA}]
    ),
    "no extra_info": (
        "arena-dialogue", [{"completion": {"message": {"think": "t", "tool_call": [DONE]}}}]
    ),
    # 3 proxy calls
    "a log entry without kind": ("arena-dialogue", proxied(logged(params={"q": "blue mug"}))),
    "parameters in the address": (
        "arena-dialogue", proxied(logged(path="/search/find_product?q=blue+mug", response=ROWS))
    ),
    "a body instead of parameters": (
        "arena-dialogue",
        proxied(logged(kind="summary", params=None, json_data={"q": "blue mug"}, response=ROWS)),
    ),
    "a shortened response": (
        "arena-dialogue",
        proxied(logged(kind="summary", params={"q": "blue mug"}, response_truncated=True,
                       response_length=9, result_product_ids=["1"], nonce_status="valid")),
    ),
    # 4 upstream rollout
    "one observation, not in a list": (
        "upstream-rollout",
        [{"prompt": [USER], **step({"tool_call": [CALL], "obs": {"results": ROWS}})}],
    ),
    # 5 tags
    "an unclosed thought": ("chat", answer(f"<think>hm {HERMES}")),
    "a thought that was opened before": ("chat", answer(f"hm</think>{HERMES}")),
    "an unclosed call": ("chat", answer(HERMES.removesuffix("</tool_call>"))),
    "parameters in tags": ("chat", answer(HERMES.replace("arguments", "parameters"))),
    "arguments in tags as text": (
        "chat",
        answer(HERMES.replace('{"q":"blue mug"}', json.dumps('{"q":"blue mug"}'))),
    ),
    "an end mark": ("chat", answer(f"<think>hm</think>{HERMES}<|im_end|>\n")),
    "a raw next turn": ("chat", {"id": "x", "messages": [USER], "tools": [], "parsed": None,
                                 "raw_text": f"<think>\nhm\n</think>\n\n{HERMES}<|im_end|>"}),
    # 6 messages
    "messages as JSON text": (
        "chat", {"messages": json.dumps(answer(HERMES)["messages"]), "tools": "[]"}
    ),
    "a developer's message": (
        "chat",
        {"messages": [{"role": "developer", "content": "s"}, *answer(HERMES)["messages"]]},
    ),
    "a flat call": (
        "chat",
        {"messages": [USER, {"role": "assistant", "tool_calls": [
            {"type": "function", "name": "find_product", "arguments": {"q": "blue mug"}}]}]},
    ),
    # 7 ATIF
    "ATIF without ids": ("atif", atif({**CALLED, "observation": {"results": [{"content": "r"}]}})),
    "ATIF, arguments as text": (
        "atif",
        atif({"tool_calls": [{"function_name": "find_product", "arguments": '{"q":"blue mug"}'}]}),
    ),
    "ATIF, a message in parts": (
        "atif", atif({"message": [{"type": "text", "text": "hm"}], **CALLED})
    ),
    # 8 evaluation rows
    "an evaluation with flat calls": (
        "evaluation",
        graded(output_tools=[{"name": "find_product", "arguments": '{"q": "blue mug"}'}]),
    ),
    "an evaluation without grade": ("evaluation", graded(output_tools=[NESTED], task="shop")),
    "an evaluation with ids as text": (
        "evaluation", graded(output_tools=[NESTED], recommended_product_ids="1,2")
    ),
    # 8 ShareGPT and dumps
    "ShareGPT by role and content": (
        "sharegpt", {"conversations": answer(HERMES)["messages"]}
    ),
    "a dump without marks": ("rl-dump", {"input": QUERY, "output": HERMES}),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_gives_the_same_call(tmp_path: Path, name: str) -> None:
    wanted, row = VARIANTS[name]
    found, reader = imported(tmp_path / "t.jsonl", lines(row))
    assert not reader.rejects
    (only,) = found
    assert only.format == wanted
    assert calls(only.trajectory) == ASKED
    said = "".join(m.content or "" for m in only.trajectory.messages if m.role == "assistant")
    assert "<|im_end|>" not in said
    assert "tool_call" not in said


def test_what_a_log_entry_told_is_in_the_record(tmp_path: Path) -> None:
    for name in ("a log entry without kind", "parameters in the address"):
        found, _ = imported(tmp_path / "t.jsonl", lines(VARIANTS[name][1]))
        (dispatch,) = found[0].trajectory.dispatches
        assert json.loads(dispatch.arguments) == {"q": "blue mug"}


def test_a_run_that_ended_before_its_dialogue_is_kept(tmp_path: Path) -> None:
    rows = [
        {"problem_id": "p", "status": "TIMED_OUT", "execution_time": 300.0, "inference_total": 3},
        {"problem_id": "q", "status": "FAILED", "execution_time": 1, "error": "boom"},
    ]
    found, reader = imported(tmp_path / "t.jsonl", lines(*rows))
    assert not reader.rejects
    assert [one.trajectory.ending for one in found] == [Ending.timed_out, Ending.crashed]
    assert found[1].trajectory.fault is not None
    assert "boom" in found[1].trajectory.fault.what


def test_words_in_place_of_a_message_are_its_response(tmp_path: Path) -> None:
    found, _ = imported(tmp_path / "t.jsonl", lines([step("I would take the first.")]))
    assert found[0].trajectory.messages[-1].content == "I would take the first."


def test_calls_that_are_no_json_are_listed(tmp_path: Path) -> None:
    found, _ = imported(tmp_path / "t.jsonl", lines([step({"tool_call": "find it"})]))
    assert ("call_shape", "[0].tool_call") in {(x.code, x.where) for x in found[0].losses}


def test_an_evaluation_without_calls_is_kept(tmp_path: Path) -> None:
    found, reader = imported(
        tmp_path / "t.jsonl", lines(graded(output_tools=None, assistant_text="bye"))
    )
    assert not reader.rejects
    assert found[0].trajectory.messages[-1].content == "bye"
    assert found[0].trajectory.attempt == 2
