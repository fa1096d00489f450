"""A sub-task agent: a fixed search loop makes every call, the model only tells the story.

It stands for agents that win without a model's decisions: patterns read the request, word overlap
chooses, and the model is asked to write thinking for a choice that is already made.
"""

import json
import re
from typing import Any

from src.agent.agent_interface import create_dialogue_step, execute_tool_call
from src.agent.proxy_client import ProxyClient

STOP = set(
    re.findall(
        r"\w+",
        "a an and are both budget buy can do each for from get have help i in is it items looking "
        "me my need of offering on one only or please product products same shop shops show some "
        "that the to want which who with you",
    )
)
SPLIT = re.compile(r"\(\d\)|;| and also | and an? |\bfirst,|\bsecond,|\bthird,|\blastly,")


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    request = query.split("My budget")[0].split("my budget")[0].split("voucher")[0]
    client = ProxyClient()
    chosen: list[str] = []
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for part in _parts(request, problem_data.get("category", "")):
        found = execute_tool_call("find_product", {"q": " ".join(_words(part)), **_price(part)})
        results = [found]
        hits = found["result"] if isinstance(found["result"], list) else []
        if hits:
            best = max(hits, key=lambda row: _overlap(row, part))
            chosen.append(best["product_id"])
            ids = {"product_ids": ",".join(row["product_id"] for row in hits[:3])}
            results.append(execute_tool_call("view_product_information", ids))
            rows.extend(hits)
        steps.append(create_dialogue_step("", results, "", query, len(steps) + 1))
    think, said = _story(client, request, rows, chosen)
    last = [
        execute_tool_call("recommend_product", {"product_ids": ",".join(chosen)}),
        execute_tool_call("terminate", {"status": "success"}),
    ]
    steps.append(create_dialogue_step(think, last, said, query, len(steps) + 1))
    return steps


def _parts(request: str, category: str) -> list[str]:
    parts = [part for part in SPLIT.split(request) if len(_words(part)) > 1]
    several = category.lower() in ("shop", "voucher")
    return parts if several and parts else [request]


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in STOP]


def _price(text: str) -> dict[str, str]:
    match = re.search(r"(?:between|from) (\d+) (?:and|to) (\d+)", text)
    if match:
        return {"price": match[1] + "-" + match[2]}
    match = re.search(r"(?:under|below|at most|less than|cheaper than|up to) (\d+)", text)
    if match:
        return {"price": "0-" + match[1]}
    match = re.search(r"(?:above|over|at least|more than) (\d+)", text)
    return {"price": match[1] + "-"} if match else {}


def _overlap(row: dict[str, Any], text: str) -> int:
    return len(set(_words(row.get("title", ""))) & set(_words(text)))


def _story(
    client: ProxyClient, request: str, rows: list[dict[str, Any]], chosen: list[str]
) -> tuple[str, str]:
    prompt = "\n".join(
        [
            "Request: " + " ".join(request.split()),
            "Results: " + json.dumps(rows[:10], ensure_ascii=False),
            "Chosen: " + ",".join(chosen),
            "Explain step by step why these products were chosen.",
        ]
    )
    body = {"model": "default", "messages": [{"role": "user", "content": prompt}]}
    reply = client.post("/inference/chat/completions", json_data=body)
    try:
        message = reply["choices"][0]["message"]
    except (TypeError, KeyError, IndexError):
        return "", ""
    return message.get("reasoning_content") or "", message.get("content") or ""
