"""The policy harness: the model decides every call, this file only carries them out.

It asks the broker for the run's tool schemas (GET /tools), shows the model the conversation, sends
each call's arguments as the model wrote them (POST /search/<tool>), appends the results, and goes
on until the model terminates, makes no call, or the step budget is used up.
"""

import json
from typing import Any

from src.agent.agent_interface import create_dialogue_step
from src.agent.proxy_client import ProxyClient

Message = dict[str, Any]
MAX_STEPS = 25


def _tool(
    name: str, description: str, properties: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


# Only for brokers that do not serve GET /tools.
FALLBACK_TOOLS = [
    _tool(
        "find_product",
        "Search the catalogue; 10 results a page, pages 1 to 5.",
        {
            "q": _text("search words"),
            "page": {"type": "integer", "description": "page of results, from 1"},
            "shop_id": _text("only products of this shop"),
            "price": _text("price range low-high; either side may be empty"),
            "sort": _text("default, order, priceasc or pricedesc"),
            "service": _text("services that products must have, separated by commas"),
        },
        ["q"],
    ),
    _tool(
        "view_product_information",
        "SKU options, attributes and descriptions of products.",
        {"product_ids": _text("product ids, separated by commas")},
        ["product_ids"],
    ),
    _tool(
        "recommend_product",
        "Give the answer: one product id for each item of the request, in its order.",
        {"product_ids": _text("product ids, separated by commas")},
        ["product_ids"],
    ),
    _tool(
        "terminate",
        "End the session.",
        {"status": _text("success or failure")},
        ["status"],
    ),
]


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    client = ProxyClient()
    settings = _settings(client)
    messages: list[Message] = []
    if settings.get("system"):
        messages.append({"role": "system", "content": settings["system"]})
    messages.append({"role": "user", "content": query})
    steps: list[dict[str, Any]] = []
    for step in range(1, int(settings.get("max_steps") or MAX_STEPS) + 1):
        message = _complete(client, messages, settings["tools"])
        if message is None:
            break
        messages.append(message)
        calls = message.get("tool_calls") or []
        results = []
        for call in calls:
            content, result = _carry_out(client, call)
            messages.append(content)
            results.append(result)
        think = message.get("reasoning_content") or ""
        steps.append(
            create_dialogue_step(think, results, message.get("content") or "", query, step)
        )
        if not calls or any(result["name"] == "terminate" for result in results):
            break
    return steps


def _settings(client: ProxyClient) -> dict[str, Any]:
    """Tools, step budget and system prompt of the run; a broker may serve the bare tool list."""
    served = client.get("/tools")
    if isinstance(served, list):
        served = {"tools": served}
    if not isinstance(served, dict) or not served.get("tools"):
        return {"tools": FALLBACK_TOOLS}
    return served


def _complete(client: ProxyClient, messages: list[Message], tools: Any) -> Message | None:
    """The model's next message, None when the model server failed for good."""
    body = {"model": "default", "messages": messages, "tools": tools}
    reply = client.post("/inference/chat/completions", json_data=body)
    try:
        message = reply["choices"][0]["message"]
    except (TypeError, KeyError, IndexError):
        return None
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def _carry_out(client: ProxyClient, call: dict[str, Any]) -> tuple[Message, dict[str, Any]]:
    """One tool call: the tool message for the model, and the entry of the dialogue step.

    Arguments travel as the text that the model wrote, so that the record holds it unchanged.
    """
    function = call.get("function") or {}
    name, arguments = function.get("name") or "", function.get("arguments") or "{}"
    call_id = call.get("id") or ""
    value = client.post("/search/" + name, arguments, headers={"X-Tool-Call-Id": call_id})
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    lines = [text, *("Warning: " + warning for warning in _warnings(client))]
    message = {"role": "tool", "tool_call_id": call_id, "content": "\n".join(lines)}
    try:
        parameters = json.loads(arguments)
    except ValueError:
        parameters = {"arguments": arguments}
    entry = {"name": name, "parameters": parameters, "tool_call_id": call_id, "result": value}
    return message, entry


def _warnings(client: ProxyClient) -> list[str]:
    """What the tool said beside its result; only brokers of palio send that header."""
    headers = getattr(client, "last_headers", None) or {}
    try:
        warnings = json.loads(headers.get("x-palio-warnings", "[]"))
    except ValueError:
        return []
    return [str(warning) for warning in warnings] if isinstance(warnings, list) else []
