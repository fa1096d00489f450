"""The chat text of a conversation is a prefix of every longer one, and parses back to messages.

Qwen3 / Hermes form, with the thinking of every turn kept. `chat_template.jinja` says the same to
`transformers`; a test holds the two together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple

from palio.records import FunctionCall, Message, ToolCall, bytes_digest

END = "<|im_end|>"
"""Ends every turn; the token that a model emits when its turn is done."""
REPLY = "<|im_start|>assistant\n"
"""Opens an assistant turn: what a prompt ends with."""

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"

_THINK = re.compile(rf"{THINK}\n?(.*?)\n?{THINK_END}\n{{0,2}}", re.DOTALL)
_CALL = re.compile(rf"\n?{CALL}\n?(.*?)\n?{CALL_END}", re.DOTALL)
_HERMES = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (.*)\}', re.DOTALL)


class Segment(NamedTuple):
    """A piece of chat text; `trained` on what the assistant writes, its end token included."""

    text: str
    trained: bool


def chat_template(name: str = "chat_template.jinja") -> str:
    """The Jinja template of the same text, as `transformers` wants it."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def assistant_text(message: Message) -> str:
    """What the assistant writes for one message, without the end token."""
    parts = []
    if message.reasoning_content is not None:
        parts.append(f"{THINK}\n{message.reasoning_content}\n{THINK_END}\n\n")
    calls = [
        f'{CALL}\n{{"name": {json.dumps(call.function.name, ensure_ascii=False)}, '
        f'"arguments": {call.function.arguments}}}\n{CALL_END}'
        for call in message.tool_calls
    ]
    lines = [message.content, *calls] if message.content else calls
    return "".join(parts) + "\n".join(lines)


def segments(messages: Sequence[Message]) -> Iterator[Segment]:
    """The chat text of a conversation in order; joined, it is the whole text."""
    for index, message in enumerate(messages):
        if message.role == "assistant":
            yield Segment(REPLY, False)
            yield Segment(assistant_text(message) + END, True)
            yield Segment("\n", False)
        elif message.role == "tool":
            opens = index == 0 or messages[index - 1].role != "tool"
            closes = index + 1 == len(messages) or messages[index + 1].role != "tool"
            head = "<|im_start|>user\n" if opens else "\n"
            tail = f"{END}\n" if closes else ""
            body = f"<tool_response>\n{message.content or ''}\n</tool_response>"
            yield Segment(head + body + tail, False)
        else:
            yield Segment(f"<|im_start|>{message.role}\n{message.content or ''}{END}\n", False)


def chat_text(messages: Sequence[Message], *, reply: bool = False) -> str:
    """The whole text; with `reply`, ended by the opening of an assistant turn."""
    return "".join(part.text for part in segments(messages)) + (REPLY if reply else "")


def parse_assistant(text: str, *, call_ids: str = "call") -> Message:
    """Read one assistant turn back; the inverse of `assistant_text` on all that it writes.

    Tolerant: a tool call whose JSON cannot be read, or a think block that never ends, stays in
    `content` as it stands, so that nothing a model wrote is lost.

    Args:
        text: the turn, with or without the end token.
        call_ids: prefix of the ids that the calls get: ``{call_ids}_{number}``.
    """
    body = text.removesuffix(END)
    thinking = _THINK.match(body)
    if thinking:
        body = body[thinking.end() :]
    calls: list[ToolCall] = []
    kept: list[str] = []
    position = 0
    for found in _CALL.finditer(body):
        function = _function_call(found.group(1))
        if function is not None:
            kept.append(body[position : found.start()])
            calls.append(ToolCall(id=f"{call_ids}_{len(calls)}", function=function))
            position = found.end()
    kept.append(body[position:])
    content = "".join(kept)
    return Message(
        role="assistant",
        content=content or (None if calls else ""),
        reasoning_content=thinking.group(1) if thinking else None,
        tool_calls=tuple(calls),
    )


def _function_call(text: str) -> FunctionCall | None:
    """The call in one block; its arguments stay as written, so that tokens can be compared."""
    hermes = _HERMES.fullmatch(text.strip())
    try:
        if hermes and isinstance(json.loads(hermes.group(2)), dict):
            return FunctionCall(name=json.loads(hermes.group(1)), arguments=hermes.group(2))
        plain: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(plain, dict) or not isinstance(plain.get("name"), str):
        return None
    arguments = plain.get("arguments", plain.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    compact = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return FunctionCall(name=plain["name"], arguments=compact)


def template_digest(name: str = "chat_template.jinja") -> str:
    """Digest of a chat template of ours; stands in the manifest of what is trained with it."""
    return bytes_digest(chat_template(name).encode())
