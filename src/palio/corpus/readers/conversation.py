"""Chat messages of any dialect become palio's messages; calls and results are paired by id.

Read: arguments as a string, an object or a string in a string; content as text, null or a list of
parts; `reasoning_content`, `reasoning` and `thinking`; `function_call`; think and call tags in the
text, tool responses in user and tool messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from palio.broker.emission import read_emission
from palio.corpus.readers.calls import read_calls
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import LossList, UnreadableError
from palio.corpus.readers.pairing import CallIds
from palio.records import FunctionCall, Message, Role, ToolCall

ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "model", "ai", "gpt"), "assistant"),
    **dict.fromkeys(("tool", "function", "ipython", "observation", "tool_response"), "tool"),
}
"""Role names of all dialects, lower case."""

_KEYS = frozenset(
    (
        *("role", "content", "tool_calls", "function_call", "tool_call_id", "name"),
        *("reasoning_content", "reasoning", "thinking", "tool_name"),
        *("refusal", "annotations", "audio", "weight", "rationalised"),
    )
)
_DROPPED = ("refusal", "annotations", "audio")
_THINKING = ("reasoning_content", "reasoning", "thinking")
_RESPONSE, _RESPONSE_END = "<tool_response>", "</tool_response>"


_END_MARKS = re.compile(r"(?:\s*<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text)\|>)+\s*\Z")


class Conversation:
    """Messages read so far, and what was lost on the way.

    Attributes:
        messages: palio's messages, call ids unique.
        losses: what reading changed.
        by_harness: ids of calls that the trace marks as not the model's.
    """

    def __init__(self, losses: LossList | None = None) -> None:
        self.messages: list[Message] = []
        self.losses = losses or LossList()
        self.by_harness: set[str] = set()
        self._ids = CallIds()

    def add(self, raw: Any, where: str, *, harness: bool = False) -> None:
        """Append one message, or the several that a message with tool responses in tags is.

        Args:
            raw: a chat message.
            where: its place in the row, for losses and errors.
            harness: whether its calls are marked as not the model's.

        Raises:
            UnreadableError: it is no object, or has no known role.
        """
        role = ROLES.get(str(raw.get("role")).lower()) if isinstance(raw, dict) else None
        if role is None:
            raise UnreadableError("message", f"{where} is no chat message")
        self.losses.unknown(raw, _KEYS, where)
        self.losses.dropped(raw, _DROPPED, where)
        if raw.get("weight") not in (None, 1):
            self.losses.add("not_carried", f"{where}.weight")
        content = self._content(raw.get("content"), where)
        if role == "assistant":
            content = self._without_end(content, where)
            self._assistant(raw, content, where, harness)
        elif content and content.lstrip().startswith(_RESPONSE) and role != "system":
            self._tagged_results(content, where)
        elif role == "tool":
            self._result(raw, self._text(raw, content, where), where)
        else:
            name = raw.get("name")
            self.messages.append(
                Message(
                    role=role,
                    content=self._text(raw, content, where),
                    name=name if isinstance(name, str) else None,
                )
            )

    def _without_end(self, content: str | None, where: str) -> str | None:
        """A raw generation without the marks that end it; they are a template's to write."""
        if not content or not content.rstrip().endswith("|>"):
            return content
        shorter = _END_MARKS.sub("", content)
        if shorter != content:
            self.losses.add("end_mark", where)
        return shorter

    def _text(self, raw: Mapping[str, Any], content: str | None, where: str) -> str:
        """Content of a message that must have one: null and absent become "" and are listed."""
        if content is None:
            self.losses.add("null_content" if "content" in raw else "absent_content", where)
        return content or ""

    def _content(self, content: Any, where: str) -> str | None:
        """Text of a content: None and "" stay apart, parts are joined."""
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            self.losses.add("content_type", where)
            return json_text(content)
        parts = []
        for index, part in enumerate(content):
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                parts.append(part["text"])
            else:
                self.losses.add("content_part", f"{where}.content[{index}]")
        return "".join(parts)

    def _thinking(self, raw: Mapping[str, Any], where: str) -> str | None:
        """The reasoning under whichever name it has; a second, different one is a loss."""
        found: str | None = None
        for key in _THINKING:
            text = raw.get(key)
            if text is None:
                continue
            if not isinstance(text, str):
                self.losses.add("reasoning_type", f"{where}.{key}")
            elif found is None:
                found = text
            elif text != found:
                self.losses.add("second_reasoning", f"{where}.{key}")
        return found

    def _assistant(
        self, raw: Mapping[str, Any], content: str | None, where: str, harness: bool
    ) -> None:
        given = read_calls(raw, where, self.losses)
        if given and content == "None":
            self.losses.add("printed_none", where)
            content = None
        if "content" not in raw and not given:
            self.losses.add("absent_content", where)
        taken = read_emission(
            Message(
                role="assistant",
                content=content,
                reasoning_content=self._thinking(raw, where),
                tool_calls=tuple(given),
            )
        )
        names = [call.function.name for call in taken.calls]
        ids = self._ids.open([call.id for call in taken.calls], names)
        calls = tuple(
            ToolCall(id=call_id, function=self._unwrapped(call.function, where))
            for call, call_id in zip(taken.calls, ids, strict=True)
        )
        for call, before in zip(calls, taken.calls, strict=True):
            if before.id and call.id != before.id:
                self.losses.add("duplicate_call_id", where)
        if harness:
            self.by_harness.update(ids)
        text = taken.content
        if calls and text == "" and content:
            text = None  # nothing was left beside the tags
        self.messages.append(
            Message(
                role="assistant",
                content=text,
                reasoning_content=taken.thinking,
                tool_calls=calls,
                name=raw["name"] if isinstance(raw.get("name"), str) else None,
                rationalised=raw.get("rationalised") is True,
            )
        )

    def _unwrapped(self, function: FunctionCall, where: str) -> FunctionCall:
        """Arguments that were encoded twice, decoded once; everything else as it is."""
        if not function.arguments.lstrip().startswith('"'):
            return function
        try:
            inner = msgspec.json.decode(function.arguments, type=str)
            msgspec.json.decode(inner, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return function
        self.losses.add("double_encoded", where)
        return FunctionCall(name=function.name, arguments=inner)

    def _result(self, raw: Mapping[str, Any], content: str, where: str) -> None:
        given = raw.get("tool_call_id")
        name = raw.get("name") or raw.get("tool_name")
        self._answer(content, str(given) if given else "", name, where)

    def _answer(self, content: str, given: str, name: Any, where: str) -> None:
        named = name if isinstance(name, str) else ""
        call_id, how = self._ids.answer(given, named)
        if how != "id":
            self.losses.add("orphan_result" if how == "none" else f"paired_by_{how}", where)
        self.messages.append(
            Message(role="tool", content=content, tool_call_id=call_id, name=named or None)
        )

    def _tagged_results(self, content: str, where: str) -> None:
        """Results of Hermes chats have no ids by design: their order is the pairing."""
        for block in content.split(_RESPONSE)[1:]:
            text, end, rest = block.partition(_RESPONSE_END)
            if not end:
                self.losses.add("unclosed_response", where)
            if rest.strip():
                self.losses.add("text_beside_response", where)
            call_id, how = self._ids.answer("")
            if how == "none":
                self.losses.add("orphan_result", where)
            self.messages.append(
                Message(role="tool", content=text.strip("\n"), tool_call_id=call_id)
            )
