"""Problems that share a product, a reward specification or a text are one cluster, with the proof.

Only exact edges are drawn here (`palio.suites.guard` adds those of similarity and of operators);
union-find closes them transitively. Every edge keeps the pair and the shared key that drew it, so
that a cluster can be explained and an edge disputed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from palio.records import ConfigError, InputError, Problem, Record
from palio.records.base import CanonicalRecord, current_schema
from palio.suites.keys import keys_of

EdgeKind = Literal["product", "spec", "text"]
EDGE_KINDS: tuple[EdgeKind, ...] = ("product", "spec", "text")


class Edge(CanonicalRecord, frozen=True):
    """Two problems that share `key` under one rule; `score` < 1 when they are only similar."""

    one: str
    other: str
    key: str
    score: float = 1.0


class Clustering(Record, frozen=True):
    """Which problem belongs to which leak cluster, and why.

    Attributes:
        cluster_of: problem id -> cluster id, in problem-id order.
        members: cluster id -> its problem ids, sorted; clusters in id order.
        edges: edge kind -> edges. k problems that share one key give the k - 1 edges of a chain in
            problem-id order, which joins the same problems as all pairs would.
    """

    cluster_of: dict[str, str]
    members: dict[str, tuple[str, ...]]
    edges: dict[str, tuple[Edge, ...]]
    schema_version: str = msgspec.field(default_factory=current_schema)

    @property
    def largest(self) -> int:
        """Problems in the largest cluster, 0 without problems."""
        return max((len(ids) for ids in self.members.values()), default=0)


class UnionFind:
    """Disjoint sets of names; the root of a set is always its smallest name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def root(self, name: str) -> str:
        """The smallest name of the set that holds `name`."""
        parent = self._parent
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def join(self, one: str, other: str) -> None:
        """Make the sets of the two names one set."""
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low

    def sets(self) -> list[tuple[str, ...]]:
        """All sets, each sorted, in the order of their smallest names."""
        grouped: dict[str, list[str]] = {}
        for name in sorted(self._parent):
            grouped.setdefault(self.root(name), []).append(name)
        return [tuple(grouped[root]) for root in sorted(grouped)]


def cluster_id(members: Iterable[str]) -> str:
    """Name of a cluster: 16 hex digits of its anchor, the member with the smallest digest.

    The anchor of n members stays the anchor when one more joins with probability n / (n + 1), so a
    name outlives most growth; what must never move (pools) is carried by problem id, not by name.
    """
    return "c-" + min(hashlib.sha256(member.encode()).hexdigest() for member in members)[:16]


def by_id(problems: Iterable[Problem]) -> dict[str, Problem]:
    """Problems by id, in id order.

    Raises:
        InputError: an id occurs twice.
    """
    found: dict[str, Problem] = {}
    for problem in problems:
        if problem.problem_id in found:
            raise InputError(
                f"problem id {problem.problem_id!r} occurs twice",
                remedy="give every problem of the set its own id",
            )
        found[problem.problem_id] = problem
    return dict(sorted(found.items()))


def shared_key_edges(problems: Sequence[Problem], rule: str) -> tuple[Edge, ...]:
    """Edges between problems with an equal key under `rule`; problems must be in id order."""
    last: dict[str, str] = {}
    edges = []
    for problem in problems:
        for key in keys_of(problem, rule):
            if key in last:
                edges.append(Edge(one=last[key], other=problem.problem_id, key=key))
            last[key] = problem.problem_id
    return tuple(edges)


def edge_kinds(names: Iterable[str]) -> tuple[EdgeKind, ...]:
    """The edge kinds that are named, in the order of `EDGE_KINDS`.

    Raises:
        ConfigError: a name is no edge kind.
    """
    wanted = {name.strip() for name in names} - {""}
    unknown = sorted(wanted - set(EDGE_KINDS))
    if unknown:
        raise ConfigError(
            f"unknown edge kind {unknown[0]!r}", remedy=f"choose from {', '.join(EDGE_KINDS)}"
        )
    return tuple(kind for kind in EDGE_KINDS if kind in wanted)


def leak_clusters(
    problems: Iterable[Problem], edges: Sequence[EdgeKind] = EDGE_KINDS
) -> Clustering:
    """Cluster problems by the chosen exact edges; the order of `problems` does not matter.

    Raises:
        ConfigError: an unknown edge kind.
        InputError: a problem id occurs twice.
    """
    edges = edge_kinds(edges)
    ordered = by_id(problems)
    drawn: dict[str, tuple[Edge, ...]] = {
        kind: shared_key_edges(tuple(ordered.values()), kind) for kind in edges
    }
    return closure(ordered, drawn)


def closure(names: Iterable[str], drawn: Mapping[str, tuple[Edge, ...]]) -> Clustering:
    """The clusters that edges close transitively over problem ids."""
    sets = UnionFind(names)
    for found in drawn.values():
        for edge in found:
            sets.join(edge.one, edge.other)
    members = {cluster_id(ids): ids for ids in sets.sets()}
    cluster_of = {name: cluster for cluster, ids in members.items() for name in ids}
    return Clustering(
        cluster_of=dict(sorted(cluster_of.items())),
        members=dict(sorted(members.items())),
        edges=dict(drawn),
    )
