"""Items of the Responses API become chat messages: what the model put out in one go is one turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Imported, LossList, UnreadableError
from palio.corpus.readers.shapes import listed

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ITEMS = (*_CALLS, *_OUTPUTS, "reasoning", "message")
_KEYS = frozenset(
    (
        *("type", "id", "status", "role", "content", "call_id", "name", "arguments", "input"),
        *("output", "summary"),
    )
)
_ROW_KEYS = frozenset(
    (
        *("input", "output", "items", "tools", "instructions", "model", "id", "object", "response"),
        *("problem_id", "query", "kind", "created_at", "status"),
    )
)


def has_items(given: Sequence[Any]) -> bool:
    """Whether a list holds Responses API items among its messages."""
    return any(isinstance(item, dict) and item.get("type") in _ITEMS for item in given)


def is_items_row(row: Any) -> bool:
    """Whether a row is a Responses API response, with or without its input."""
    if not isinstance(row, dict):
        return False
    lists = [row[key] for key in ("input", "output", "items") if isinstance(row.get(key), list)]
    return any(has_items(held) for held in lists)


def read_items(row: Mapping[str, Any], source: str) -> Imported:
    """Read `instructions`, `input` and `output` (or `items`) as one conversation.

    Raises:
        UnreadableError: nothing in them is a message.
    """
    conversation = Conversation()
    losses = conversation.losses
    messages: list[dict[str, Any]] = []
    if isinstance(row.get("instructions"), str):
        messages.append({"role": "system", "content": row["instructions"]})
    asked = row.get("input")
    held: list[Any] = [{"role": "user", "content": asked}] if isinstance(asked, str) else []
    for key in ("input", "items", "output"):
        held += listed(row.get(key))
    messages += messages_of_items(held, losses, "items")
    if not messages:
        raise UnreadableError("empty", "no item is a message")
    for index, raw in enumerate(messages):
        conversation.add(raw, f"items[{index}]")
    losses.unknown(row, _ROW_KEYS)
    return imported(
        conversation,
        source,
        fallback=row,
        tools=read_tools(row.get("tools"), losses),
        trajectory_id=str(row.get("id") or ""),
        problem_id=str(row.get("problem_id") or ""),
        query=str(row.get("query") or ""),
        kind=str(row.get("kind") or ""),
        agent=external_agent(model=row.get("model")),
    )


def messages_of_items(items: Sequence[Any], losses: LossList, where: str) -> list[dict[str, Any]]:
    """Chat messages of items; reasoning, text and calls in a row are one assistant message."""
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    for index, item in enumerate(items):
        place = f"{where}[{index}]"
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and (kind in _CALLS or kind == "reasoning" or _spoken(item)):
            if turn is None or (kind == "reasoning" and len(turn) > 2):
                turn = {"role": "assistant", "content": None}
                messages.append(turn)
            _grow(turn, item, losses, place)
            continue
        turn = None
        if kind in _OUTPUTS:
            messages.append(_output(item))
        elif isinstance(item, dict) and "role" in item:
            messages.append({key: value for key, value in item.items() if key not in _NOISE})
        else:
            losses.add("item", place)
    return messages


_NOISE = ("type", "id", "status")


def _spoken(item: Mapping[str, Any]) -> bool:
    """Whether an item is text of the model, not an assistant message of the chat dialect."""
    return item.get("role") == "assistant" and item.get("type") == "message"


def _grow(turn: dict[str, Any], item: Mapping[str, Any], losses: LossList, where: str) -> None:
    """Add a reasoning, message or call item to the turn it belongs to."""
    losses.unknown(item, _KEYS, where)
    if item.get("type") == "reasoning":
        texts = [
            part["text"]
            for key in ("summary", "content")
            for part in listed(item.get(key))
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        text = "\n".join(texts)
        turn["reasoning_content"] = "\n".join(
            part for part in (turn.get("reasoning_content"), text) if part
        )
    elif item.get("type") in _CALLS:
        call = {
            "id": item.get("call_id") or item.get("id"),
            "function": {
                "name": item.get("name"),
                "arguments": item.get("arguments", item.get("input")),
            },
        }
        turn.setdefault("tool_calls", []).append(call)
    elif turn["content"] is None:
        turn["content"] = item.get("content")
    else:
        losses.add("joined_text", where)
        both = [turn["content"], item.get("content")]
        parts = [part if isinstance(part, list) else [part] for part in both if part]
        turn["content"] = [inner for part in parts for inner in part]


def _output(item: Mapping[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    if output is not None and not isinstance(output, str | list):
        output = json_text(output)
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
