"""What an agent or a model server sends becomes a clean record or a typed refusal, not a crash."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from palio.records import (
    FaultCode,
    FunctionCall,
    InputError,
    Message,
    Role,
    ToolCall,
    UpstreamError,
    Usage,
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def clean_text(text: str) -> str:
    """`text` without NUL and lone surrogates, which no database and no JSON writer takes.

    Each becomes U+FFFD, so positions stay.
    """
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_value(value: Any) -> Any:
    """A parsed JSON value whose texts are clean and whose numbers every reader takes.

    NaN and infinities become None, integers beyond 64 bits their hexadecimal digits; what is nested
    too deeply to be looked through is None.
    """
    try:
        return _cleaned(value)
    except RecursionError:
        return None


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value]
    if isinstance(value, Mapping):
        return {clean_text(str(key)): _cleaned(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return hex(value)  # decimal digits of a huge integer cost their square, and are refused
    return value


def plain_json(value: Any) -> str:
    """Compact JSON text of what an agent passed as an object, in its own key order.

    What JSON cannot hold is written as its `str`; depth bombs raise `InputError`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"the value has no JSON form: {error}") from error
    return clean_text(text)


def load_json(text: str | bytes) -> Any:
    """Parsed JSON.

    Raises:
        InputError: not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {str(error)[:200]}") from error


def argument_text(arguments: Mapping[str, Any] | str) -> str:
    """The raw argument JSON of a call: a string as it is, an object written compactly."""
    if isinstance(arguments, str):
        return clean_text(arguments)
    return plain_json(arguments)


def read_message(raw: Any) -> Message:
    """One OpenAI chat message as a record.

    Text parts are joined; other content (images) is kept as its JSON text. `function_call` and
    `reasoning` of older servers are read as `tool_calls` and `reasoning_content`.

    Raises:
        InputError: no object, or an unknown role.
    """
    if not isinstance(raw, Mapping):
        raise InputError(f"a message must be an object, not {type(raw).__name__}")
    named = raw.get("role", "")
    role = _ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise InputError(f"unknown message role {str(raw.get('role'))[:40]!r}")
    content = _content(raw.get("content"))
    if role in ("user", "system"):
        return Message(role=role, content=content)
    if role == "tool":
        call_id = raw.get("tool_call_id")
        return Message(
            role="tool",
            content=content,
            tool_call_id=None if call_id is None else clean_text(str(call_id)),
            name=_optional(raw.get("name")),
        )
    reasoning = raw.get("reasoning_content")
    if reasoning is None:
        reasoning = raw.get("reasoning")
    return Message(
        role="assistant",
        content=content,
        reasoning_content=_optional(reasoning),
        tool_calls=_tool_calls(raw),
    )


def read_messages(raw: Any) -> list[Message]:
    """The messages of a request.

    Raises:
        InputError: no list, an empty one, or one of them is no message; names its position.
    """
    if not isinstance(raw, list | tuple) or not raw:
        raise InputError("`messages` must be a list with at least one message")
    messages = []
    for at, item in enumerate(raw):
        try:
            messages.append(read_message(item))
        except InputError as error:
            raise InputError(error.what, where=f"messages[{at}]") from error
    return messages


def read_completion(response: Any, where: str = "") -> tuple[Message, str, Usage]:
    """The assistant message, finish reason and usage of a chat completion response.

    Raises:
        UpstreamError: `upstream_garbage`: not the shape of a completion, no choice, or a null
            message that neither thinks nor calls.
    """
    try:
        choice = response["choices"][0]
        message = read_message({"role": "assistant", **choice["message"]})
        if message.role != "assistant":
            raise InputError(f"the completion has role {message.role}")
    except (KeyError, IndexError, TypeError, InputError) as error:
        what = f"the model server's answer is no chat completion: {error!r}"[:300]
        raise garbage(what, where) from error
    if message.content is None and not message.tool_calls and not message.reasoning_content:
        raise garbage("the model server answered with null content and no tool call", where)
    finish = clean_text(str(choice.get("finish_reason") or ""))
    return message, finish, _usage(response.get("usage"))


def relayed(response: Mapping[str, Any]) -> dict[str, Any]:
    """A completion that `read_completion` took, with the arguments of its calls as JSON text.

    Some servers send them as an object, or null; agents rely on OpenAI's form, and must not crash
    for what a server does.
    """
    choice, *others = response["choices"]
    calls = choice["message"].get("tool_calls") or ()
    if all(isinstance(call["function"].get("arguments"), str) for call in calls):
        return dict(response)
    named = _tool_calls(choice["message"])
    texts = [
        {**call, "function": {**call["function"], "arguments": read.function.arguments}}
        for call, read in zip(calls, named, strict=True)
    ]
    message = {**choice["message"], "tool_calls": texts}
    return {**response, "choices": [{**choice, "message": message}, *others]}


def garbage(what: str, where: str = "") -> UpstreamError:
    """The error for an answer that is no completion; the next try may be one."""
    return UpstreamError(
        what,
        code=FaultCode.upstream_garbage,
        retryable=True,
        where=where,
        remedy="check that the URL is an OpenAI-compatible chat completions server",
    )


def message_size(message: Message) -> int:
    """Characters that a message adds to the record."""
    size = len(message.content or "") + len(message.reasoning_content or "")
    return size + sum(len(c.function.arguments) + len(c.function.name) for c in message.tool_calls)


def _content(raw: Any) -> str | None:
    if raw is None:
        return None
    if isinstance(raw, str):
        return clean_text(raw)
    if isinstance(raw, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in raw
    ):
        return clean_text("".join(cast("str", part["text"]) for part in raw))
    return plain_json(raw)


def _optional(raw: Any) -> str | None:
    return None if raw is None else clean_text(str(raw))


def _tool_calls(raw: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = raw.get("tool_calls")
    if not calls:
        old = raw.get("function_call")
        calls = [{"function": old}] if isinstance(old, Mapping) else []
    if not isinstance(calls, list | tuple):
        raise InputError("`tool_calls` must be a list")
    return tuple(_tool_call(call) for call in calls)


def _tool_call(raw: Any) -> ToolCall:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping):
        raise InputError("a tool call must be an object with a `function`")
    arguments = function.get("arguments")
    return ToolCall(
        id=clean_text(str(raw.get("id") or "")),
        function=FunctionCall(
            name=clean_text(str(function.get("name") or "")),
            arguments=argument_text("{}" if arguments is None else arguments),
        ),
    )


def _usage(raw: Any) -> Usage:
    if not isinstance(raw, Mapping):
        return Usage()
    counts = {}
    for name in ("prompt_tokens", "completion_tokens"):
        value = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            counts[name] = value
    return Usage(**counts)
