"""What an arena agent imports: tool registry, call ids, the step format, and calling a tool."""

from __future__ import annotations

import json
import time

from src.agent.proxy_client import ProxyClient

TYPE_CHECKING = False  # importing typing costs 3 ms of every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TOOLS: dict[str, Callable[..., Any]] = {}
_CLIENT: list[ProxyClient] = []


def register_tool(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make `function` the tool `name`; a later registration replaces an earlier one."""
    _TOOLS[name] = function
    return function


def get_tool(name: str) -> Callable[..., Any] | None:
    """The registered tool, None if there is none."""
    return _TOOLS.get(name)


def Tool(target: Any = None) -> Any:  # noqa: N802 - the name is part of the agent contract
    """Decorator that registers a function as a tool: ``@Tool`` or ``@Tool("name")``."""
    if callable(target):
        return register_tool(target.__name__, target)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return register_tool(str(target or function.__name__), function)

    return decorate


def generate_tool_call_id(name: str, parameters: Any, length: int = 8) -> str:
    """First `length` url-safe base64 characters of md5(name, line feed, repr(parameters)).

    The same call has the same id each time; the host makes ids unique.
    """
    import base64
    import hashlib

    text = f"{name}\n{parameters!r}".encode("utf-8", "replace")
    digest = hashlib.md5(text, usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")[:length]


def format_content(
    think: str | None = None, tool_calls: Any = None, response: str | None = None
) -> str:
    """The text form of a step: think, tool_call (a JSON list) and response, each in its tag."""
    parts = []
    if think:
        parts.append(f"<think>{think}</think>")
    if tool_calls:
        asked = [
            {"name": call.get("name"), "parameters": call.get("parameters", {})}
            for call in tool_calls
        ]
        parts.append(f"<tool_call>{json.dumps(asked, ensure_ascii=False)}</tool_call>")
    if response:
        parts.append(f"<response>{response}</response>")
    return "\n".join(parts)


def create_dialogue_step(
    think: str | None = None,
    tool_results: Any = None,
    response: str | None = None,
    query: str = "",
    step: int = 1,
) -> dict[str, Any]:
    """One step of the list that agent_main returns."""
    message: dict[str, Any] = {}
    if think:
        message["think"] = think
    if tool_results:
        message["tool_call"] = list(tool_results)
    if response:
        message["response"] = response
    return {
        "completion": {
            "reasoning_content": "",
            "content": format_content(think, tool_results, response),
            "message": message,
        },
        "extra_info": {"step": step, "query": query, "timestamp": int(time.time() * 1000)},
    }


def execute_tool_call(
    tool_name: str, parameters: dict[str, Any], call_id: str | None = None
) -> dict[str, Any]:
    """Carry out one call: a registered tool if there is one, else the broker's tool of that name.

    Args:
        tool_name: name of the tool.
        parameters: its arguments.
        call_id: id that the model gave the call; sent along, so that the host can tell that the
            model asked for it.

    Returns:
        {name, parameters, tool_call_id, result}; an error stands in `result`.
    """
    tool = _TOOLS.get(tool_name)
    try:
        if tool is not None:
            result = tool(**parameters)
        else:
            if not _CLIENT:
                _CLIENT.append(ProxyClient())
            headers = {"X-Tool-Call-Id": call_id} if call_id else None
            result = _CLIENT[0].post(f"/search/{tool_name}", parameters, headers)
    except Exception as error:  # noqa: BLE001 - a failing tool is an observation
        result = {"error": f"{type(error).__name__}: {error}"}
    return {
        "name": tool_name,
        "parameters": parameters,
        "tool_call_id": call_id or generate_tool_call_id(tool_name, parameters),
        "result": result,
    }
