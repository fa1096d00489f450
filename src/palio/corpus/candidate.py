"""What is remembered of a row that passed the gates, while rows are compared with each other."""

from __future__ import annotations

import msgspec

from palio.corpus.gates import Drop
from palio.corpus.ranking import Signals
from palio.corpus.salvage import AGENT_MARK


class Candidate(msgspec.Struct, frozen=True):
    """What stays in memory of a row that passed the gates: 500 bytes, whatever the trace weighs.

    Attributes:
        place: (offset, length) of the body in the spool.
        conversation: digest that is equal for equal conversations.
        score: weighted ranking signals, in [0, 1].
    """

    trajectory_id: str
    problem_id: str
    agent: str
    place: tuple[int, int]
    conversation: bytes
    signals: Signals
    score: float

    @property
    def salvaged(self) -> bool:
        """Whether the row was made of a sub-task trace."""
        return self.agent.endswith(AGENT_MARK)

    @property
    def standing(self) -> tuple[bool, float, str]:
        """Sort key: salvaged rows last, best score first, then the id, which favours nobody."""
        return (self.salvaged, -self.score, self.trajectory_id)


Selected = tuple[list[Candidate], list[tuple[Candidate, Drop]]]
"""(kept in order of trajectory id, dropped with the reason)."""
