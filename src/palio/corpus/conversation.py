"""What a conversation shows by itself: its calls, whether they pair up, what it was told.

Everything here reads OpenAI messages or recorded dispatches and never a verdict, so it holds for a
trace of any origin.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from palio.judging.answers import product_ids, recommended, ungrounded
from palio.records import Message, Record, ToolCall, Trajectory

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder(order="sorted").encode

SEARCHES = frozenset({"find_product", "find_products_in_same_shop"})
CHECKS = frozenset({"view_product_information", "check_product_match"})
RECOMMEND = "recommend_product"


class Call(Record, frozen=True):
    """One call that an assistant message makes; `arguments` is None when they do not parse."""

    name: str
    arguments: dict[str, Any] | None

    @property
    def identity(self) -> tuple[str, bytes]:
        """Equal for calls that ask for the same."""
        return self.name, _encode(self.arguments)


@lru_cache(maxsize=4096)
def parse_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call as an object; None when `text` is anything but a JSON object.

    Kept for a while, since four gates ask for the same calls: treat the result as read-only.
    """
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def calls_of(messages: Sequence[Message]) -> tuple[Call, ...]:
    """Every call that the model made, in order."""
    return tuple(
        Call(name=call.function.name, arguments=parse_arguments(call.function.arguments))
        for message in messages
        for call in message.tool_calls
    )


def ids_in(arguments: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The product ids that a call names, under either spelling of the parameter."""
    held = arguments or {}
    return product_ids(held.get("product_ids") or held.get("product_id"))


def turns(messages: Sequence[Message]) -> Iterator[tuple[Message, tuple[Message, ...]]]:
    """Each assistant message with the tool messages that directly follow it."""
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if message.role == "assistant":
            start = position
            while position < len(messages) and messages[position].role == "tool":
                position += 1
            yield message, tuple(messages[start:position])


def _paired(message: Message, replies: Sequence[Message]) -> bool:
    """The usual case, without counting: every call is answered, in order, by its own id."""
    return [call.id for call in message.tool_calls] == [reply.tool_call_id for reply in replies]


def orphan_calls(messages: Sequence[Message], terminal: Sequence[str] = ()) -> tuple[ToolCall, ...]:
    """Calls without a response in the next turn.

    Args:
        messages: the conversation.
        terminal: tools that need no response when the conversation ends with their call.
    """
    found: list[ToolCall] = []
    for message, replies in turns(messages):
        if not message.tool_calls or _paired(message, replies):
            continue
        left = Counter(reply.tool_call_id for reply in replies)
        last = message is messages[-1] or (replies and replies[-1] is messages[-1])
        for call in message.tool_calls:
            if left[call.id]:
                left[call.id] -= 1
            elif not (last and call.function.name in terminal):
                found.append(call)
    return tuple(found)


def orphan_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Tool messages that answer no call of the assistant message before them."""
    paired = 0
    found: list[Message] = []
    for message, replies in turns(messages):
        paired += len(replies)
        if _paired(message, replies):
            continue
        left = Counter(call.id for call in message.tool_calls)
        for reply in replies:
            if left[reply.tool_call_id or ""]:
                left[reply.tool_call_id or ""] -= 1
            else:
                found.append(reply)
    tools = [message for message in messages if message.role == "tool"]
    return tuple(found) if paired == len(tools) else (*found, *tools[: len(tools) - paired])


def mentions(text: str, product_id: str) -> bool:
    """Whether `text` holds the id as a whole word: id 12 does not occur in 312 or in 12a."""
    start = text.find(product_id)
    while start >= 0:
        end = start + len(product_id)
        before = text[start - 1] if start else " "
        after = text[end] if end < len(text) else " "
        if not (before.isalnum() or before in "_-.") and not (after.isalnum() or after in "_-"):
            return True
        start = text.find(product_id, start + 1)
    return False


def observations(trajectory: Trajectory) -> tuple[tuple[str, str, str], ...]:
    """(tool, raw arguments, result) in order: from the host's record, else from the messages."""
    if dispatches := trajectory.dispatches:
        return tuple((d.tool, d.arguments, d.result) for d in dispatches)
    found = []
    for message, replies in turns(trajectory.messages):
        results = {reply.tool_call_id: reply.content or "" for reply in replies}
        found += [
            (call.function.name, call.function.arguments, results.get(call.id, ""))
            for call in message.tool_calls
        ]
    return tuple(found)


def ungrounded_ids(trajectory: Trajectory) -> tuple[str, ...]:
    """Recommended ids that no earlier tool result told the agent.

    A result counts only when the call did not itself name the id: a tool that echoes what it was
    asked ("no product 123") grounds nothing.
    """
    before: list[tuple[str, str]] = []
    for tool, arguments, result in observations(trajectory):
        if tool == RECOMMEND:
            break
        before.append((arguments, result))
    return tuple(
        name
        for name in recommended(trajectory)
        if not any(tells(result, name) and not mentions(asked, name) for asked, result in before)
    )


def tells(result: str, product_id: str) -> bool:
    """Whether a result names the id: as a `product_id` where it has that key, else as a word.

    With keys, words are not enough: in a world of 4-digit ids a price may equal an id.
    """
    if '"product_id"' in result:
        return not ungrounded([product_id], [result])
    return mentions(result, product_id)


def conversation_digest(messages: Sequence[Message]) -> bytes:
    """32 bytes, equal for conversations that differ in nothing but their call ids."""
    plain = [
        (
            message.role,
            message.content,
            message.reasoning_content,
            [
                (call.function.name, parse_arguments(call.function.arguments) or call.function)
                for call in message.tool_calls
            ],
        )
        for message in messages
    ]
    return hashlib.sha256(_encode(plain)).digest()
