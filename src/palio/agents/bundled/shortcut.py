"""A shortcut: answers from a table of query hashes, else the first hit; it never looks at anything.

The table below is empty as shipped. `palio.agents.shortcut.with_table` writes a copy that holds the
answers of a public suite, as cheating submissions do; a grounding check must catch it.
"""

import hashlib
from typing import Any

from src.agent.agent_interface import create_dialogue_step, execute_tool_call

TABLE: dict[str, str] = {}


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    query = problem_data["query"]
    key = hashlib.sha256(query.encode("utf-8")).hexdigest()
    ids = TABLE.get(key, "")
    steps: list[dict[str, Any]] = []
    if not ids:
        found = execute_tool_call("find_product", {"q": query})
        hits = found["result"] if isinstance(found["result"], list) else []
        ids = hits[0]["product_id"] if hits else ""
        steps.append(create_dialogue_step("", [found], "", query, 1))
    last = [
        execute_tool_call("recommend_product", {"product_ids": ids}),
        execute_tool_call("terminate", {"status": "success"}),
    ]
    steps.append(create_dialogue_step("", last, "", query, len(steps) + 1))
    return steps
