"""Reads an OpenAI chat request and writes the response; refuses what an engine cannot honour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from palio.broker.upstream import RejectedError
from palio.records import Message


class Wish(NamedTuple):
    """What one completion asks for.

    Attributes:
        temperature: 0: the likeliest token every time.
        top_p: sample from the likeliest tokens that reach this probability together.
        seed: of the sampling; equal requests with equal seeds get equal answers.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int


def read_request(body: Mapping[str, Any], most: int) -> Wish:
    """Check a request.

    Raises:
        RejectedError: messages that are no conversation, or a parameter out of range.
    """
    raw = body.get("messages")
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
        _refuse("messages must be a non-empty list")
    if body.get("n") not in (None, 1):
        _refuse("only one choice a request (n = 1)")
    limits = (body.get("max_completion_tokens"), body.get("max_tokens"), most)
    wanted = next(limit for limit in limits if limit is not None)
    return Wish(
        messages=tuple(_message(each) for each in raw),
        max_tokens=int(_number(wanted, "max_tokens", 1, 1 << 20)),
        temperature=_number(body.get("temperature", 0.0), "temperature", 0.0, 10.0),
        top_p=_number(body.get("top_p", 1.0), "top_p", 1e-6, 1.0),
        seed=int(_number(body.get("seed") or 0, "seed", -(2**63), 2**63)),
    )


def _message(raw: Any) -> Message:
    """One message; unknown fields are ignored, content parts are joined."""
    if not isinstance(raw, Mapping):
        _refuse("a message must be an object")
    content = raw.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    try:
        return msgspec.convert(
            {**raw, "content": content, "tool_calls": raw.get("tool_calls") or ()}, Message
        )
    except msgspec.ValidationError as error:
        _refuse(f"a message has the wrong form: {error}")


def _number(value: Any, name: str, low: float, high: float) -> float:
    if value is None and low <= 1.0 <= high:
        return 1.0
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        _refuse(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    return value


def response(
    model: str, number: int, message: Message, finish: str, prompt: int, written: int
) -> dict[str, Any]:
    """The completion as OpenAI writes it."""
    plain = message.to_openai()
    plain.setdefault("content", None)
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": plain, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        },
    }


def with_token_ids(
    answer: dict[str, Any], prompt: Sequence[int], sampled: Sequence[int]
) -> dict[str, Any]:
    """The completion with its token ids where vLLM puts them for `return_token_ids`."""
    first = {**answer["choices"][0], "token_ids": list(sampled)}
    return {**answer, "choices": [first], "prompt_token_ids": list(prompt)}


def _refuse(what: str) -> NoReturn:
    raise RejectedError(what, remedy="correct the request")
