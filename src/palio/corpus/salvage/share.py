"""Salvaged rows never make up more than their share of a pool, and the better ones stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from palio.corpus.candidate import Candidate, Selected
from palio.corpus.gates import Drop


def within_share(
    candidates: Sequence[Candidate], share: float, pool_of: Mapping[str, str]
) -> Selected:
    """Drop the lowest-ranked salvaged rows of each pool until they are within their share.

    With n other rows in a pool, floor(n * share / (1 - share)) stay; a pool without other rows
    keeps none, unless the share is 1.

    Args:
        candidates: rows that every other step kept.
        share: most of a pool's rows that may be salvaged, in [0, 1].
        pool_of: problem id -> pool; problems that it lacks are one more pool.
    """
    by_pool: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_pool.setdefault(pool_of.get(candidate.problem_id, ""), []).append(candidate)
    kept: list[Candidate] = []
    dropped: list[tuple[Candidate, Drop]] = []
    for pool, rows in by_pool.items():
        own = [row for row in rows if not row.salvaged]
        ranked = sorted((row for row in rows if row.salvaged), key=lambda row: row.standing)
        # the small addend undoes what division loses: 2 * 0.6 / 0.4 is 2.9999999999999996
        most = len(ranked) if share >= 1 else int(len(own) * share / (1 - share) + 1e-9)
        kept += own + ranked[:most]
        detail = f"{most} salvaged rows beside {len(own)} others of {pool or 'no pool'}"
        dropped += [(row, Drop(reason="over_share", detail=detail)) for row in ranked[most:]]
    return sorted(kept, key=lambda row: row.trajectory_id), dropped
