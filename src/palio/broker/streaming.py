"""A whole completion as the server-sent events that a streaming client puts together again.

The record needs whole answers, and nonces stand in whole calls, so the upstream is never streamed;
a client that asked for a stream gets the answer in pieces all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

PIECE = 2000
"""Characters of text in one event."""


def stream_events(answer: Mapping[str, Any], options: Any = None) -> Iterator[bytes]:
    """The events of a completion: role, text in pieces, calls, the finish reason, ``[DONE]``.

    Args:
        answer: a chat.completion response.
        options: the request's `stream_options`; with `include_usage` a last chunk without choices
            carries the usage, as OpenAI's servers send it.
    """
    choice = answer["choices"][0]
    frame = {**answer, "object": "chat.completion.chunk"}
    usage = frame.pop("usage", None)
    for delta in _deltas(choice["message"]):
        yield _event(frame, delta, None)
    yield _event(frame, {}, choice.get("finish_reason") or "stop")
    if isinstance(options, Mapping) and options.get("include_usage"):
        yield b"data: " + json.dumps({**frame, "choices": [], "usage": usage}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rest = {k: v for k, v in message.items() if k not in ("content", "tool_calls")}
    content = message.get("content")
    yield {**rest, "role": "assistant", "content": None if content is None else ""}
    if isinstance(content, str):
        for at in range(0, len(content), PIECE):
            yield {"content": content[at : at + PIECE]}
    elif content is not None:
        yield {"content": content}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        head = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [head]}
        arguments = function.get("arguments") or ""
        for at in range(0, len(arguments), PIECE):
            piece = {"index": index, "function": {"arguments": arguments[at : at + PIECE]}}
            yield {"tool_calls": [piece]}


def _event(frame: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**frame, "choices": [choice]}).encode() + b"\n\n"
