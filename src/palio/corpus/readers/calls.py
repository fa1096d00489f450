"""Tool calls and tool schemas of every dialect take palio's one form, losses listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import LossList
from palio.records import FunctionCall, Tool, ToolCall

_ARGUMENTS = ("arguments", "parameters", "input", "args")
_CALL_KEYS = frozenset((*_ARGUMENTS, "function", "type", "id", "index", "name", "call_id"))


def read_calls(raw: Mapping[str, Any], where: str, losses: LossList) -> list[ToolCall]:
    """The structured calls of an assistant message, "" for an absent id.

    Args:
        raw: a message with `tool_calls` (a list, one object, or JSON text of either) or the legacy
            `function_call`.
        where: the message's place in the row.
        losses: takes what was changed.
    """
    given = read_list(raw.get("tool_calls"), f"{where}.tool_calls", losses)
    calls = [
        call
        for index, item in enumerate(given)
        if (call := read_call(item, f"{where}.tool_calls[{index}]", losses))
    ]
    legacy = raw.get("function_call")
    if legacy:
        call = read_call({"function": legacy}, f"{where}.function_call", losses)
        if call and call.function in [known.function for known in calls]:
            losses.add("mirrored_call", f"{where}.function_call")
        elif call:
            calls.append(call)
    return calls


def read_call(item: Any, where: str, losses: LossList) -> ToolCall | None:
    """One call; None, and a loss, when the item names no function."""
    function = item.get("function", item) if isinstance(item, dict) else None
    if isinstance(function, str):
        function = {**item, "name": function}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        losses.add("call_shape", where)
        return None
    losses.unknown(item, _CALL_KEYS, where)
    call_id = item.get("id") or item.get("call_id") or ""
    named = FunctionCall(name=function["name"], arguments=_argument_text(function, where, losses))
    return ToolCall(id=str(call_id), function=named)


def _argument_text(function: Mapping[str, Any], where: str, losses: LossList) -> str:
    """The arguments as JSON text: a text as it is, an object written compactly."""
    key = next((name for name in _ARGUMENTS if name in function), None)
    arguments = function[key] if key else None
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        losses.add("null_arguments" if key else "absent_arguments", where)
        return "{}"
    if not isinstance(arguments, dict):
        losses.add("argument_type", where)
    return json_text(arguments)


def read_list(given: Any, where: str, losses: LossList) -> list[Any]:
    """Calls as a list: a list itself, one call alone, or JSON text of either."""
    if isinstance(given, str) and given.strip():
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError):
            losses.add("call_shape", where)
            return []
    if isinstance(given, dict):
        return [given]
    if given and not isinstance(given, list):
        losses.add("call_shape", where)
        return []
    return given or []


def read_tools(given: Any, losses: LossList, where: str = "tools") -> tuple[Tool, ...]:
    """Tools in nested form; a string is JSON, a flat schema is nested."""
    if isinstance(given, str) and given.strip():
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError):
            losses.add("tools", where)
            return ()
    found: list[Tool] = []
    for index, tool in enumerate(given if isinstance(given, list) else []):
        if isinstance(tool, str):
            found += read_tools(tool, losses, f"{where}[{index}]")
        elif not isinstance(tool, dict):
            losses.add("tools", f"{where}[{index}]")
        elif isinstance(tool.get("function"), dict):
            found.append(dict(tool))
        else:
            flat = {key: value for key, value in tool.items() if key != "type"}
            found.append({"type": "function", "function": flat})
    return tuple(found)
