"""What a lineage's source says: a rollout of ours, a file that was read, a row made of another."""

from __future__ import annotations

from palio.corpus.salvage.mark import AGENT_MARK, SOURCE_MARK


def origin(source: str) -> str:
    """The source to count a row under: salvaged rows are one source, whatever they came from."""
    return SOURCE_MARK.rstrip(":") if source.startswith(SOURCE_MARK) else source


def file_name(source: str) -> str:
    """The file that a row was read from, "" where the source names none."""
    return "" if source.startswith(SOURCE_MARK) else source.partition(":")[2]


def ran_by(agent: str) -> str:
    """The agent that ran: a salvaged row still is work of the agent that it was made of."""
    return agent.removesuffix(AGENT_MARK)
