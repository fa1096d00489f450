"""A component that grows large, or that hangs together by single threads, is shown to a person.

Transitive closure explodes when an edge is too easily drawn: on 750 public tasks with thresholds at
a false-pair rate of 1e-3 one component held 313.
"""

from __future__ import annotations

from itertools import combinations
from typing import Literal

from palio.records import Problem, Record
from palio.suites.clusters import EDGE_KINDS, Clustering
from palio.suites.keys import keys_of


class Alarm(Record, frozen=True, omit_defaults=False):
    """One cluster that should be looked at.

    Attributes:
        density: pairs of members that are joined directly, over all pairs.
    """

    cluster: str
    why: Literal["large", "loose"]
    size: int
    density: float


def alarms_of(
    problems: dict[str, Problem], clustering: Clustering, *, large: int, loose: float
) -> tuple[Alarm, ...]:
    """Clusters of more than `large` problems, and those of 4 or more below a density of `loose`.

    A chain of 4 has the density 1/2, one of 8 has 1/4.
    """
    found = []
    direct = _similar(clustering)
    for cluster, members in clustering.members.items():
        if len(members) < 4:
            continue
        pairs = len(members) * (len(members) - 1) // 2
        if len(members) > large:
            joined = sum(len(edges & set(members)) for edges in map(direct.get, members) if edges)
            density = min(1.0, joined / 2 / pairs)
            found.append(Alarm(cluster=cluster, why="large", size=len(members), density=density))
            continue
        keys = {name: _keys(problems[name], clustering) for name in members}
        joined = sum(
            bool(keys[one] & keys[other]) or other in direct.get(one, ())
            for one, other in combinations(members, 2)
        )
        if joined / pairs < loose:
            density = joined / pairs
            found.append(Alarm(cluster=cluster, why="loose", size=len(members), density=density))
    return tuple(found)


def _keys(problem: Problem, clustering: Clustering) -> set[tuple[str, str]]:
    kinds = [kind for kind in EDGE_KINDS if kind in clustering.edges]
    return {(kind, key) for kind in kinds for key in keys_of(problem, kind)}


def _similar(clustering: Clustering) -> dict[str, set[str]]:
    """Problem -> problems that an edge joins to it directly."""
    direct: dict[str, set[str]] = {}
    for edges in clustering.edges.values():
        for edge in edges:
            direct.setdefault(edge.one, set()).add(edge.other)
            direct.setdefault(edge.other, set()).add(edge.one)
    return direct
