"""A scripted model knows nothing but the conversation: this is its whole reading of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from palio.records import InputError

Rows = list[dict[str, Any]]
_ALIASES = {"query": "q", "product_id": "product_ids", "string": "q", "list": "product_ids"}
_DEFAULTS = {("page", "1"), ("sort", "default")}


class Conversation:
    """What stands in the messages: the request, the calls made and what each one answered.

    Attributes:
        request: text of the first user message.
        turns: how many assistant messages there are.
        calls: how many tool calls they make; the next id counts on from here.
        results: key of a call (`call_key`) -> text of its result.
        finished: whether terminate was called.
        briefed: whether there is a system message.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Read `messages` in OpenAI form.

        Raises:
            InputError: there is no user message, or a message is no object with a role.
        """
        self.request = ""
        self.turns = 0
        self.calls = 0
        self.finished = False
        self.briefed = False
        self.results: dict[str, str] = {}
        asked: dict[str, str] = {}
        found = False
        for at, message in enumerate(messages):
            role = message.get("role") if isinstance(message, Mapping) else None
            if role == "user" and not found:
                self.request, found = _text(message.get("content")), True
            elif role == "system":
                self.briefed = True
            elif role == "assistant":
                self.turns += 1
                self._read_calls(message.get("tool_calls") or (), asked)
            elif role == "tool":
                key = asked.get(str(message.get("tool_call_id")))
                if key is not None:
                    self.results[key] = _text(message.get("content"))
            elif not isinstance(role, str):
                raise InputError(f"messages[{at}] is no object with a role")
        if not found:
            raise InputError("the conversation has no user message")

    def _read_calls(self, calls: Sequence[Mapping[str, Any]], asked: dict[str, str]) -> None:
        for call in calls:
            function = call.get("function") or {}
            name = str(function.get("name", ""))
            asked[str(call.get("id"))] = call_key(name, function.get("arguments"))
            self.calls += 1
            self.finished |= name == "terminate"


def call_key(name: str, arguments: Any) -> str:
    """One key for calls that ask the same: aliases resolved, order and empty members dropped."""
    if isinstance(arguments, str):
        return _text_key(name, arguments)
    return _key(name, arguments)


@lru_cache(maxsize=8192)
def _text_key(name: str, arguments: str) -> str:
    try:
        return _key(name, json.loads(arguments))
    except (ValueError, RecursionError):
        return f"{name} {arguments}"


def _key(name: str, arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return f"{name} {arguments!r}"
    plain = {
        _ALIASES.get(key, key): ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in arguments.items()
        if value not in ("", None, []) and (key, str(value)) not in _DEFAULTS
    }
    return f"{name} {sorted(plain.items())}"


@lru_cache(maxsize=8192)
def read_rows(text: str) -> Rows:
    """Rows of a tool message: its first line is JSON, warnings follow it. Not to be changed.

    A result that is one object reads as one row; anything else as no rows.
    """
    try:
        value = json.loads(text.partition("\n")[0])
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        return [value]
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(content: Any) -> str:
    """Text of a message; lone surrogates, which no reply could carry, become question marks."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        return ""
    return content if content.isascii() else content.encode("utf-8", "replace").decode("utf-8")
