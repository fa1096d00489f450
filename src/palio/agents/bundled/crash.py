"""A broken agent: it raises after one search."""

from typing import Any

from src.agent.agent_interface import execute_tool_call


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    execute_tool_call("find_product", {"q": problem_data["query"]})
    raise RuntimeError("this agent crashes on purpose")
