"""What a lineage's source says: a rollout of ours, a file that was read, a row made of another."""

from __future__ import annotations

SALVAGE = "salvage:"
"""Start of the source of a row that was rewritten from another trajectory, whose id follows."""
SALVAGED_AGENT = "+salvage"
"""What the agent's name of such a row ends with."""


def origin(source: str) -> str:
    """The source to count a row under: salvaged rows are one source, whatever they came from."""
    return SALVAGE.rstrip(":") if source.startswith(SALVAGE) else source


def made_of(source: str) -> str:
    """The id of the trajectory that a row was made of, "" for a row that was run."""
    return source.removeprefix(SALVAGE) if source.startswith(SALVAGE) else ""


def file_name(source: str) -> str:
    """The file that a row was read from, "" where the source names none."""
    return "" if source.startswith(SALVAGE) else source.partition(":")[2]


def ran_by(agent: str) -> str:
    """The agent that ran: a salvaged row still is work of the agent that it was made of."""
    return agent.removesuffix(SALVAGED_AGENT)
