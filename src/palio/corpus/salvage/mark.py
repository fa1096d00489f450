"""A salvaged row says so in its source and in its agent's name, wherever it travels."""

from __future__ import annotations

from palio.records import Trajectory

SOURCE_MARK = "salvage:"
"""Start of the `source` of a salvaged trajectory; the id of what it was made of follows."""
AGENT_MARK = "+salvage"
"""What the agent's name of a salvaged trajectory ends with; pool files carry that name."""


def salvaged_from(source: str) -> str:
    """The id of the trajectory that a row with this source was made of; "" when it was not."""
    return source.removeprefix(SOURCE_MARK) if source.startswith(SOURCE_MARK) else ""


def is_salvaged(trajectory: Trajectory) -> bool:
    """Whether a trajectory was made of another one; any rationalised thinking also says so."""
    return trajectory.source.startswith(SOURCE_MARK) or any(
        message.rationalised for message in trajectory.messages
    )
