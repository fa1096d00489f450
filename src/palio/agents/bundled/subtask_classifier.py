"""A sub-task agent: a fixed search loop makes every call, the model only says yes or no.

Each candidate of the search is shown to the model beside the request; the first yes is taken.
"""

import json
import re
from typing import Any

from src.agent.agent_interface import create_dialogue_step, execute_tool_call
from src.agent.proxy_client import ProxyClient

CANDIDATES = 4
SPLIT = re.compile(r"\(\d\)|;| and also |\bfirst,|\bsecond,|\bthird,|\bfourth,", re.IGNORECASE)


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    client = ProxyClient()
    steps: list[dict[str, Any]] = []
    chosen: list[str] = []
    for part in _parts(query):
        found = execute_tool_call("find_product", {"q": part})
        hits = found["result"][:CANDIDATES] if isinstance(found["result"], list) else []
        results, details = [found], {}
        if hits:
            ids = {"product_ids": ",".join(row["product_id"] for row in hits)}
            viewed = execute_tool_call("view_product_information", ids)
            results.append(viewed)
            if isinstance(viewed["result"], list):
                details = {row["product_id"]: row for row in viewed["result"]}
        think, picked = "", hits[0]["product_id"] if hits else ""
        for row in hits:
            shown = {**row, **details.get(row["product_id"], {})}
            think, verdict = _ask(client, part, shown)
            if verdict.strip().lower().startswith("yes"):
                picked = row["product_id"]
                break
        chosen += [picked] if picked else []
        steps.append(create_dialogue_step(think, results, "", query, len(steps) + 1))
    last = [
        execute_tool_call("recommend_product", {"product_ids": ",".join(chosen)}),
        execute_tool_call("terminate", {"status": "success"}),
    ]
    steps.append(create_dialogue_step("", last, "", query, len(steps) + 1))
    return steps


def _parts(query: str) -> list[str]:
    """The items of the request as plain search words, without budget and voucher."""
    request = re.split(r"budget|voucher", query, flags=re.IGNORECASE)[0]
    parts = [" ".join(re.findall(r"[A-Za-z0-9]+", part)) for part in SPLIT.split(request)]
    items = [part for part in parts if len(part.split()) > 2]
    return items or [request]


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
