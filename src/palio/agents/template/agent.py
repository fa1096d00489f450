"""A small agent to start from: the model decides, this file carries out its calls.

The contract: `agent_main(problem_data)` gets {"query", "category", "problem_id"} and returns a list
of dialogue steps. The world and the model are reached through the proxy only.
"""

import json
from typing import Any

from src.agent.agent_interface import create_dialogue_step
from src.agent.proxy_client import ProxyClient

STEPS = 15


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    client = ProxyClient()
    settings = client.get("/tools") or {}
    messages: list[dict[str, Any]] = [{"role": "user", "content": query}]
    if settings.get("system"):
        messages.insert(0, {"role": "system", "content": settings["system"]})
    steps: list[dict[str, Any]] = []
    for step in range(1, STEPS + 1):
        body = {"model": "default", "messages": messages, "tools": settings.get("tools", [])}
        reply = client.post("/inference/chat/completions", json_data=body)
        if not reply:
            break
        message = reply["choices"][0]["message"]
        messages.append(message)
        results = [carry_out(client, messages, call) for call in message.get("tool_calls") or []]
        think = message.get("reasoning_content") or ""
        steps.append(create_dialogue_step(think, results, message.get("content"), query, step))
        if not results or results[-1]["name"] == "terminate":
            break
    return steps


def carry_out(
    client: ProxyClient, messages: list[dict[str, Any]], call: dict[str, Any]
) -> dict[str, Any]:
    """One tool call of the model; its result goes back into the conversation.

    Arguments travel as the text that the model wrote: where it is not JSON, the tool says so.
    """
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    result = client.post("/search/" + name, arguments, headers={"X-Tool-Call-Id": call["id"]})
    text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    try:
        parameters = json.loads(arguments)
    except ValueError:
        parameters = {"arguments": arguments}
    return {"name": name, "parameters": parameters, "tool_call_id": call["id"], "result": result}
