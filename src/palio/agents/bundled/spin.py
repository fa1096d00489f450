"""A broken agent: it never ends; only the host's clock stops it."""

from typing import Any


def agent_main(problem_data: dict[str, Any]) -> list[dict[str, Any]]:
    """The agent contract; see the module."""
    turns = len(problem_data)
    while True:
        turns += 1
