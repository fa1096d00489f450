"""One reading of what a completion asks for, whether calls are structured or written in tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from palio.broker.wire import clean_text, plain_json
from palio.records import FunctionCall, InputError, Message, ToolCall

_DECODER = json.JSONDecoder()
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"


class Emission(NamedTuple):
    """A completion taken apart.

    Attributes:
        thinking: reasoning, from its own field or from think tags; None when there is none.
        content: what is left of the content; unchanged when it holds no tags.
        calls: the calls in order; `id` is "" when the model gave none.
    """

    thinking: str | None
    content: str | None
    calls: tuple[ToolCall, ...]


def read_emission(message: Message) -> Emission:
    """Take a completion apart, tolerantly.

    Structured calls win: with them, tags in the text are text. Otherwise every
    ``<tool_call>`` block is read: one object or a list of them, ``parameters`` for ``arguments``,
    a last block that is not closed. A think block that is not closed ends at the first call.
    Source: Hermes/Qwen chat format and the ShoppingBench text format.
    """
    content = message.content
    thinking = message.reasoning_content
    if not content or "<" not in content:
        return Emission(thinking, content, message.tool_calls)
    if thinking is None and content.lstrip().startswith(_THINK):
        thinking, content = _split_thinking(content)
    elif thinking is None and _THOUGHT in content and _THINK not in content:
        # Servers whose template opens the think block leave only its end in the answer.
        before, _, content = content.partition(_THOUGHT)
        thinking, content = before.strip(), content.lstrip("\n")
    if message.tool_calls or _OPEN not in content:
        return Emission(thinking, content, message.tool_calls)
    text, calls = _split_calls(content)
    return Emission(thinking, text, calls)


def _split_thinking(content: str) -> tuple[str, str]:
    body = content.lstrip()[len(_THINK) :]
    end = body.find(_THOUGHT)
    if end >= 0:
        return body[:end].strip(), body[end + len(_THOUGHT) :].lstrip("\n")
    call = body.find(_OPEN)
    if call >= 0:
        return body[:call].strip(), body[call:]
    return body.strip(), ""


def _split_calls(content: str) -> tuple[str, tuple[ToolCall, ...]]:
    kept: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := content.find(_OPEN, at)) >= 0:
        kept.append(content[at:start])
        end = content.find(_CLOSE, start)
        stop, at = (len(content), len(content)) if end < 0 else (end, end + len(_CLOSE))
        found = _block_calls(content[start + len(_OPEN) : stop])
        if not found:
            kept.append(content[start:at])
        calls.extend(found)
    kept.append(content[at:])
    return "".join(kept).strip(), tuple(calls)


def _block_calls(block: str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    text = block.strip()
    while text:
        try:
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        for item in value if isinstance(value, list) else [value]:
            call = _written_call(item)
            if call is not None:
                calls.append(call)
        text = text[end:].lstrip(" \t\r\n,")
    return calls


def _written_call(item: Any) -> ToolCall | None:
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        return None
    arguments = item.get("arguments", item.get("parameters"))
    try:
        text = arguments if isinstance(arguments, str) else plain_json(arguments or {})
    except InputError:
        return None
    call_id = str(item.get("id") or item.get("tool_call_id") or "")
    return ToolCall(
        id=clean_text(call_id),
        function=FunctionCall(name=clean_text(item["name"]), arguments=clean_text(text)),
    )
