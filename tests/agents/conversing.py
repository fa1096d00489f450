"""A bare harness loop over a toolbox: model turn, tool results, until terminate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palio.world.tools import Toolbox, tool_message, tool_schemas


def converse(
    upstream: Any,
    model: str,
    toolbox: Toolbox,
    query: str,
    *,
    system: str = "",
    steps: int = 25,
    tools: Sequence[Any] | None = None,
    begun: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The whole conversation of a model over a toolbox, or the rest of one that was begun."""
    messages: list[dict[str, Any]] = list(begun) or [{"role": "user", "content": query}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    offered = list(tool_schemas() if tools is None else tools)
    for _ in range(steps):
        answer = upstream.complete({"model": model, "messages": messages, "tools": offered})
        message = answer["choices"][0]["message"]
        messages.append(message)
        calls = message.get("tool_calls", ())
        for call in calls:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            content = tool_message(toolbox.call(name, arguments))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if not calls or any(call["function"]["name"] == "terminate" for call in calls):
            break
    return messages


def answer_of(messages: list[dict[str, Any]]) -> str:
    """The product ids of the last recommend_product call, "" if there is none."""
    found = ""
    for message in messages:
        for call in message.get("tool_calls", ()):
            if call["function"]["name"] == "recommend_product":
                found = json.loads(call["function"]["arguments"])["product_ids"]
    return found


def turns_of(messages: list[dict[str, Any]]) -> int:
    """How many times the model spoke."""
    return sum(message["role"] == "assistant" for message in messages)
