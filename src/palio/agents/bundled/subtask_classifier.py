"""A sub-task agent: a fixed search loop makes every call, the model only says yes or no.

Each candidate of the search is shown to the model beside the request; the first yes is taken.
"""

import json
import re
from typing import Any

from src.agent.agent_interface import create_dialogue_step, execute_tool_call
from src.agent.proxy_client import ProxyClient

CANDIDATES = 4


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    client = ProxyClient()
    found = execute_tool_call("find_product", {"q": _plain(query)})
    hits = found["result"] if isinstance(found["result"], list) else []
    steps = [create_dialogue_step("", [found], "", query, 1)]
    details = {}
    if hits:
        ids = {"product_ids": ",".join(row["product_id"] for row in hits[:CANDIDATES])}
        viewed = execute_tool_call("view_product_information", ids)
        if isinstance(viewed["result"], list):
            details = {row["product_id"]: row for row in viewed["result"]}
        steps.append(create_dialogue_step("", [viewed], "", query, 2))
    chosen, think = "", ""
    for row in hits[:CANDIDATES]:
        think, verdict = _ask(client, query, {**row, **details.get(row["product_id"], {})})
        if verdict.strip().lower().startswith("yes"):
            chosen = row["product_id"]
            break
    chosen = chosen or (hits[0]["product_id"] if hits else "")
    last = [
        execute_tool_call("recommend_product", {"product_ids": chosen}),
        execute_tool_call("terminate", {"status": "success"}),
    ]
    steps.append(create_dialogue_step(think, last, "", query, len(steps) + 1))
    return steps


def _plain(query: str) -> str:
    request = re.split(r"budget|voucher", query, flags=re.IGNORECASE)[0]
    return " ".join(re.findall(r"[A-Za-z0-9]+", request))


def _ask(client: ProxyClient, query: str, row: dict[str, Any]) -> tuple[str, str]:
    short = {key: value for key, value in row.items() if "description" not in key}
    prompt = "\n".join(
        [
            "Request: " + " ".join(query.split()),
            "Candidate: " + json.dumps(short, ensure_ascii=False),
            "Does the candidate fit the request? Answer yes or no.",
        ]
    )
    body = {"model": "default", "messages": [{"role": "user", "content": prompt}]}
    reply = client.post("/inference/chat/completions", json_data=body)
    try:
        message = reply["choices"][0]["message"]
    except (TypeError, KeyError, IndexError):
        return "", "no"
    return message.get("reasoning_content") or "", message.get("content") or ""
