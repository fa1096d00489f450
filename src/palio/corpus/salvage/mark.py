"""A salvaged row says so in its source and in its agent's name, wherever it travels."""

from __future__ import annotations

from palio.records.trajectory import SALVAGE_MARK

SOURCE_MARK = SALVAGE_MARK
AGENT_MARK = "+salvage"
"""What the agent's name of a salvaged trajectory ends with; pool files carry that name."""


def salvaged_from(source: str) -> str:
    """The id of the trajectory that a row with this source was made of; "" when it was not."""
    return source.removeprefix(SOURCE_MARK) if source.startswith(SOURCE_MARK) else ""
