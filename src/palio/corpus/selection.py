"""Of rows that passed the gates: one of each conversation, the best of each problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palio.corpus.gates import Drop
from palio.corpus.ranking import Signals


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
    def standing(self) -> tuple[float, str]:
        """Sort key: best score first, then the id, which is a digest and so favours nobody."""
        return (-self.score, self.trajectory_id)


Selected = tuple[list[Candidate], list[tuple[Candidate, Drop]]]
"""(kept in order of trajectory id, dropped with the reason)."""


def without_duplicates(candidates: Iterable[Candidate]) -> Selected:
    """Of equal conversations keep the one with the smallest trajectory id."""
    first: dict[bytes, Candidate] = {}
    dropped = []
    for candidate in sorted(candidates, key=lambda c: c.trajectory_id):
        same = first.setdefault(candidate.conversation, candidate)
        if same is not candidate:
            drop = Drop(reason="duplicate", detail=f"same conversation as {same.trajectory_id}")
            dropped.append((candidate, drop))
    return list(first.values()), dropped


def best_of_each_problem(candidates: Sequence[Candidate], most: int) -> Selected:
    """Keep the `most` best candidates of each problem; 0 keeps all."""
    by_problem: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_problem.setdefault(candidate.problem_id, []).append(candidate)
    kept, dropped = [], []
    for rows in by_problem.values():
        ranked = sorted(rows, key=lambda c: c.standing)
        cut = most or len(ranked)
        kept += ranked[:cut]
        for rank, candidate in enumerate(ranked[cut:], start=cut + 1):
            detail = f"rank {rank} of {len(ranked)}, score {candidate.score:.4f}"
            dropped.append((candidate, Drop(reason="over_cap", detail=detail)))
    return sorted(kept, key=lambda c: c.trajectory_id), dropped
