"""A scripted web agent: read about the question, follow a name once, buy the brand's product."""

import re
from typing import Any

from src.agent.agent_interface import create_dialogue_step, execute_tool_call


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    question, _, wish = query.rpartition("? ")
    if not question:
        question, _, wish = query.partition(". ")
    kind = wish.rpartition(":")[2].strip(" .")
    pages = execute_tool_call("web_search", {"q": question, "max_results": 3})
    steps = [create_dialogue_step("", [pages], "", query, 1)]
    if " " in _name(pages["result"][0]):
        asked = {"q": _name(pages["result"][0]) + " founded", "max_results": 3}
        pages = execute_tool_call("web_search", asked)
        steps.append(create_dialogue_step("", [pages], "", query, 2))
    best = ""
    for name in [_name(page) for page in pages["result"] if " " not in _name(page)]:
        found = execute_tool_call("find_product", {"q": name + " " + kind})
        steps.append(create_dialogue_step("", [found], "", query, len(steps) + 1))
        titles = [row["title"].lower() for row in found["result"][:1]]
        if titles and name.lower() in titles[0] and kind in titles[0]:
            best = found["result"][0]["product_id"]
            break
    last = [
        execute_tool_call("recommend_product", {"product_ids": best}),
        execute_tool_call("terminate", {"status": "success"}),
    ]
    steps.append(create_dialogue_step("", last, "", query, len(steps) + 1))
    return steps


def _name(page: dict[str, Any]) -> str:
    """Whom a page is about: two words for a person, one for a company or a town."""
    return re.sub(r"The history of|Life of|\(.*\)", "", page["title"]).strip()
