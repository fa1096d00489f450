"""One reading of completions: structured calls, and every tag form that real models write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.broker.emission import read_emission
from palio.records import FunctionCall, Message, ToolCall

CALL = '{"name":"find_product","arguments":{"q":"mug"}}'


def said(content: str | None, **more: object) -> Message:
    return Message(role="assistant", content=content, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "thinking", "rest", "calls"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", None, "", 1),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", None, "", 2),
        (f"<tool_call>[{CALL},{CALL}]</tool_call>", None, "", 2),
        (f"<tool_call>{CALL}\n{CALL}</tool_call>", None, "", 2),
        (f"<think>a < b</think>hm\n<tool_call>{CALL}", "a < b", "hm", 1),
        (f"<think>open {CALL} <tool_call>{CALL}</tool_call>", f"open {CALL}", "", 1),
        ("<think>open for ever", "open for ever", "", 0),
        (f"thought first</think>\n<tool_call>{CALL}</tool_call>", "thought first", "", 1),
        ('<tool_call>{"name":"t","parameters":{"a":1}}</tool_call>', None, "", 1),
        ('<tool_call>{"name":"t","arguments":"{}"}</tool_call>', None, "", 1),
        ('<tool_call>{"name":"t"}</tool_call>', None, "", 1),
        ("<tool_call>{broken</tool_call>", None, "<tool_call>{broken</tool_call>", 0),
        ("<tool_call>[1, null]</tool_call>", None, "<tool_call>[1, null]</tool_call>", 0),
        ("a <b> c", None, "a <b> c", 0),
    ],
)
def test_tag_forms(text: str, thinking: str | None, rest: str, calls: int) -> None:
    emission = read_emission(said(text))
    assert (emission.thinking, emission.content, len(emission.calls)) == (thinking, rest, calls)


def test_arguments_become_a_json_string() -> None:
    call = read_emission(said(f"<tool_call>{CALL}</tool_call>")).calls[0]
    assert call == ToolCall(
        id="", function=FunctionCall(name="find_product", arguments='{"q":"mug"}')
    )


def test_structured_calls_win_over_tags() -> None:
    call = ToolCall(id="c", function=FunctionCall(name="t", arguments="{}"))
    message = said(f"<tool_call>{CALL}</tool_call>", tool_calls=(call,))
    assert read_emission(message) == (None, message.content, (call,))


def test_a_reasoning_field_wins_over_tags() -> None:
    message = said("<think>b</think>x", reasoning_content="a")
    assert read_emission(message)[:2] == ("a", "<think>b</think>x")


def test_null_and_empty_stay_apart() -> None:
    assert read_emission(said(None)).content is None
    assert read_emission(said("")).content == ""


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    if "<" not in text:
        plain = read_emission(said(text))
        assert (plain.content, plain.calls) == (text, ())
    read_emission(said(text))
    read_emission(said("<tool_call>" + text))
    read_emission(said("<think>" + text + "<tool_call>" + text + "</tool_call>"))


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3), max_size=4))
def test_written_calls_come_back(arguments: list[dict[str, int]]) -> None:
    blocks = [json.dumps({"name": "t", "arguments": each}) for each in arguments]
    text = "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
    calls = read_emission(said(text)).calls
    assert len(calls) == len(arguments)
    for call, given_ in zip(calls, arguments, strict=True):
        cleaned = json.dumps(given_, ensure_ascii=False).replace("\x00", "\ufffd")
        assert json.loads(call.function.arguments) == json.loads(cleaned)
