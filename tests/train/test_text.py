"""Chat text is prefix-preserving, parses back, and the template says the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from palio.records import FunctionCall, Message, ToolCall
from palio.train.text import (
    END,
    REPLY,
    assistant_text,
    chat_template,
    chat_text,
    parse_assistant,
    segments,
)

words = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=30)
calls = st.builds(
    lambda name, arguments: FunctionCall(
        name=name, arguments=json.dumps(arguments, ensure_ascii=False)
    ),
    st.sampled_from(["find_product", "terminate", 'od"d', "ünï"]),
    st.dictionaries(st.sampled_from(["q", "page"]), words | st.integers(), max_size=2),
)
assistants = st.builds(
    lambda content, thinking, made: Message(
        role="assistant",
        content=content or None if made else content,
        reasoning_content=thinking,
        tool_calls=tuple(ToolCall(id=f"c_{at}", function=call) for at, call in enumerate(made)),
    ),
    words,
    st.none() | words,
    st.lists(calls, max_size=3),
)
others = st.builds(
    lambda role, content: Message(role=role, content=content),
    st.sampled_from(["user", "tool", "system"]),
    words,
)
talk = st.lists(st.one_of(assistants, others), min_size=1, max_size=8)


@given(assistants)
def test_a_turn_parses_back_to_itself(message: Message) -> None:
    back = parse_assistant(assistant_text(message) + END, call_ids="c")
    assert back == message


@given(talk)
def test_the_text_is_a_prefix_of_every_longer_conversation(messages: list[Message]) -> None:
    whole = chat_text(messages)
    for cut in range(len(messages)):
        if messages[cut].role == "assistant":
            assert whole.startswith(chat_text(messages[:cut], reply=True))


@given(talk)
def test_the_template_writes_the_same_text(messages: list[Message]) -> None:
    environment = Environment(keep_trailing_newline=True)
    environment.add_extension(Generation)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # as transformers does
    plain = [message.to_openai() for message in messages]
    template = environment.from_string(chat_template())
    for reply in (False, True):
        rendered = template.render(messages=plain, add_generation_prompt=reply)
        assert rendered == chat_text(messages, reply=reply)


class Generation(Extension):
    """The `generation` block of chat templates, which marks what the assistant writes."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def test_only_what_the_assistant_writes_is_trained(talks: list[Sequence[Message]]) -> None:
    for messages in talks:
        trained = [part.text for part in segments(messages) if part.trained]
        wanted = [assistant_text(m) + END for m in messages if m.role == "assistant"]
        assert trained == wanted


def test_two_tool_results_share_a_turn() -> None:
    text = chat_text([Message(role="tool", content="a"), Message(role="tool", content="b")])
    assert text == (
        "<|im_start|>user\n<tool_response>\na\n</tool_response>"
        "\n<tool_response>\nb\n</tool_response><|im_end|>\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>\n{"name": "x", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        "<think>\nnever ends",
        "<tool_call>\n" + "[" * 100_000 + "\n</tool_call>",
    ],
)
def test_what_cannot_be_read_stays_as_content(text: str) -> None:
    message = parse_assistant(text)
    assert message.content == text
    assert message.tool_calls == ()


def test_other_forms_of_a_call_are_understood() -> None:
    text = '<tool_call>{"parameters": {"q": "a"}, "name": "find_product"}</tool_call>'
    (call,) = parse_assistant(text).tool_calls
    assert call.function == FunctionCall(name="find_product", arguments='{"q":"a"}')


def test_a_reply_opens_where_the_prompt_ends() -> None:
    asked = [Message(role="user", content="hi")]
    assert chat_text(asked, reply=True).endswith(f"hi{END}\n{REPLY}")
