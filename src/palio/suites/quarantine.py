"""Problems suspected of being one never stand on two sides: the measuring one is taken out.

A quarantined problem keeps its pool in the record and has no row in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from palio.suites.guard import Suspicion


def quarantined(
    pool_of: Mapping[str, str], suspicions: Iterable[Suspicion], pools: Sequence[str]
) -> dict[str, Suspicion]:
    """Problems to take out, each with the suspicion that it falls under.

    Of every suspicion only the members of its first pool stay, so that training data is never lost
    for the sake of a measurement. A problem that is out already no longer counts, and suspicions
    that touch the first pools are decided first, so that few are taken out.

    Args:
        pool_of: problem id -> pool.
        suspicions: of the same problems.
        pools: all pools, training first.

    Returns:
        Problem id -> suspicion, in problem-id order.
    """
    rank = {pool: place for place, pool in enumerate(pools)}

    def first(suspicion: Suspicion) -> tuple[int, tuple[str, ...], str]:
        return (
            min(rank[pool_of[name]] for name in suspicion.problems),
            suspicion.problems,
            suspicion.key,
        )

    out: dict[str, Suspicion] = {}
    for suspicion in sorted(suspicions, key=first):
        left = [name for name in suspicion.problems if name not in out]
        if left:
            lowest = min(rank[pool_of[name]] for name in left)
            out.update({name: suspicion for name in left if rank[pool_of[name]] > lowest})
    return dict(sorted(out.items()))
