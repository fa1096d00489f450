"""A finished chat completion as the server-sent events that a streaming client expects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def sse_events(answer: Mapping[str, Any], *, include_usage: bool = False) -> Iterator[bytes]:
    """``data: {chunk}`` events of a completion, then ``data: [DONE]``.

    Role first, then reasoning, content, one chunk a tool call, then the finish reason; with
    `include_usage` a last chunk without choices carries the usage, as OpenAI's does.
    """
    head = {key: answer.get(key) for key in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    for choice in answer.get("choices", ()):
        for delta, finish in _deltas(choice):
            part = {"index": choice.get("index", 0), "delta": delta, "finish_reason": finish}
            yield _event({**head, "choices": [part]})
    if include_usage:
        yield _event({**head, "choices": [], "usage": answer.get("usage")})
    yield b"data: [DONE]\n\n"


def _deltas(choice: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    message = choice.get("message", {})
    yield {"role": "assistant", "content": ""}, None
    for name in ("reasoning_content", "content"):
        if message.get(name):
            yield {name: message[name]}, None
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **call}]}, None
    yield {}, choice.get("finish_reason")


def _event(chunk: Mapping[str, Any]) -> bytes:
    text = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
