"""A broken agent: it searches once and returns text instead of a list of steps."""

from typing import Any

from src.agent.agent_interface import execute_tool_call


def agent_main(problem_data: dict[str, Any]) -> Any:
    """The agent contract; see the module."""
    execute_tool_call("find_product", {"q": problem_data["query"]})
    return "the answer is in the post"
