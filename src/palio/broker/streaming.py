"""A whole completion as the server-sent events that a streaming client puts together again.

The record needs whole answers, and nonces stand in whole calls, so the broker never streams from an
upstream; a client that asked for a stream gets the answer in pieces all the same. A server of a
model streams from those that can (`StreamingUpstream`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

PIECE = 2000
"""Characters of text in one event."""
DONE = b"data: [DONE]\n\n"
"""Ends a stream that is whole."""
Tell = Callable[[dict[str, Any]], None]
"""Takes the chunks of a stream in their order, in OpenAI's form."""


@runtime_checkable
class StreamingUpstream(Protocol):
    """An upstream that can answer piece by piece; see `upstream.Upstream`."""

    def stream(self, body: dict[str, Any], tell: Tell) -> None:
        """Answer a request, and tell each piece as soon as it is there.

        Put together, the chunks are what `complete` answers to the same request and seed. The last
        has the usage, where `wants_usage`. Nothing is told before the model wrote something.

        Raises:
            UpstreamError, RejectedError: as `complete` does; what was told by then is no answer.
        """


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a request for a stream asks for its usage."""
    options = body.get("stream_options")
    return isinstance(options, Mapping) and bool(options.get("include_usage"))


def sse_events(answer: Mapping[str, Any], *, include_usage: bool = False) -> Iterator[bytes]:
    """``data: {chunk}`` events of a completion, then ``data: [DONE]``.

    Role first, with whatever the message holds beside text and calls, and the log-probabilities of
    the choice where it tells them, all at once; then the text in pieces, each
    call's id and name and its arguments in pieces, the finish reason; with `include_usage` a last
    chunk without choices carries the usage, as OpenAI's does.
    """
    frame = {**answer, "object": "chat.completion.chunk"}
    usage = frame.pop("usage", None)
    for choice in answer.get("choices", ()):
        index = choice.get("index", 0)
        told = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
        for delta in _deltas(choice.get("message", {})):
            yield _event(frame, {"index": index, "delta": delta, "finish_reason": None, **told})
            told = {}
        finish = choice.get("finish_reason") or "stop"
        yield _event(frame, {"index": index, "delta": {}, "finish_reason": finish})
    if include_usage:
        yield sse_event({**frame, "choices": [], "usage": usage})
    yield DONE


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    reasoning = message.get("reasoning_content")
    apart = ("content", "tool_calls", "reasoning_content")
    rest = {key: value for key, value in message.items() if key not in apart}
    yield {**rest, "role": "assistant", "content": ""}
    for name, text in (("reasoning_content", reasoning), ("content", message.get("content"))):
        if isinstance(text, str):
            for at in range(0, len(text), PIECE):
                yield {name: text[at : at + PIECE]}
        elif text is not None:
            yield {name: text}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        first = {**function, "arguments": arguments[:PIECE]}
        yield {"tool_calls": [{**call, "index": index, "function": first}]}
        for at in range(PIECE, len(arguments), PIECE):
            piece = {"index": index, "function": {"arguments": arguments[at : at + PIECE]}}
            yield {"tool_calls": [piece]}


def _event(frame: Mapping[str, Any], choice: Mapping[str, Any]) -> bytes:
    return sse_event({**frame, "choices": [choice]})


def sse_event(chunk: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    text = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode("utf-8", "replace")
