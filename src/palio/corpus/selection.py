"""Of rows that passed the gates: one of each conversation, the best of each problem and cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from palio.corpus.candidate import Candidate, Selected
from palio.corpus.config import CorpusConfig
from palio.corpus.gates import Drop
from palio.corpus.salvage.share import within_share


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


def best_of_each_cluster(
    candidates: Sequence[Candidate], most: int, cluster_of: Mapping[str, str]
) -> Selected:
    """Keep at most `most` candidates of each leak cluster; 0 keeps all.

    The problems of a cluster take turns, each with its best first, so that one problem with many
    good runs does not push out the other wordings of the same specification.
    """
    turn_of: dict[str, int] = {}
    seen: dict[str, int] = {}
    by_cluster: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: c.standing):
        turn = seen.get(candidate.problem_id, 0)
        seen[candidate.problem_id] = turn + 1
        turn_of[candidate.trajectory_id] = turn
        by_cluster.setdefault(cluster_of[candidate.problem_id], []).append(candidate)
    kept, dropped = [], []
    for cluster, rows in by_cluster.items():
        ranked = sorted(rows, key=lambda c: (turn_of[c.trajectory_id], c.standing))
        cut = most or len(ranked)
        kept += ranked[:cut]
        for rank, candidate in enumerate(ranked[cut:], start=cut + 1):
            detail = f"rank {rank} of {len(ranked)} in cluster {cluster}"
            dropped.append((candidate, Drop(reason="over_cluster_cap", detail=detail)))
    return sorted(kept, key=lambda c: c.trajectory_id), dropped


def capped(
    candidates: Sequence[Candidate],
    config: CorpusConfig,
    cluster_of: Mapping[str, str],
    pool_of: Mapping[str, str] | None = None,
) -> Selected:
    """All caps: of each problem, of each cluster among those, of salvaged rows among what is left.

    Args:
        candidates: rows that are no duplicates.
        config: the caps.
        cluster_of: problem id -> leak cluster.
        pool_of: problem id -> pool, each with its own share of salvaged rows; None = one pool.
    """
    kept, dropped = best_of_each_problem(candidates, config.per_problem)
    kept, more = best_of_each_cluster(kept, config.per_cluster, cluster_of)
    kept, salvaged = within_share(kept, config.salvaged_share, pool_of or {})
    return kept, [*dropped, *more, *salvaged]
