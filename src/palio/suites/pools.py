"""A problem's pool follows from its cluster and family, never from its row, and never moves.

The unit of the split is a leak cluster merged with every cluster that shares a title family with
it. A salted hash of the unit's anchor picks the pool, so the split needs no state and no order; an
earlier assignment, when given, wins over the hash, and a unit that joins two of its pools is an
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from palio.records import ConfigError, IntegrityError, Problem, Record
from palio.suites.clusters import (
    EDGE_KINDS,
    Clustering,
    UnionFind,
    by_id,
    leak_clusters,
    shared_key_edges,
)
from palio.suites.keys import RULES, family_keys, keys_of, product_keys
from palio.suites.wordings import check_banks, check_kept, open_shares

DEFAULT_FRACTIONS = {"train": 0.8, "development": 0.1, "heldout": 0.1}
SEALED = "sealed"
"""The pool that is opened for a final claim only, and every opening is logged."""
DEFAULT_SALT = "palio"
POOL_RULE = "palio-pools-1"
"""Raised whenever equal units, fractions and salt would give other pools."""
WORDINGS_POOL_RULE = "palio-pools-2"
"""The rule where wordings are held out: a reader of the first would not know of them."""


class Disjointness(Record, frozen=True):
    """What a passed check compared: pools with their problem counts, and keys compared per rule."""

    problems: dict[str, int]
    keys: dict[str, int]


def split_units(
    problems: Iterable[Problem],
    clustering: Clustering,
    together: Iterable[tuple[str, str]] = (),
) -> list[tuple[str, ...]]:
    """Problem ids of each split unit: clusters, merged where they share a title family.

    Args:
        problems: the problems.
        clustering: their leak clusters.
        together: pairs of problem ids that must stand on one side though they are no cluster.

    Raises:
        IntegrityError: a problem is not part of the clustering.
    """
    ordered = by_id(problems)
    for problem_id in ordered:
        if problem_id not in clustering.cluster_of:
            raise IntegrityError(
                f"problem {problem_id!r} has no leak cluster",
                remedy="cluster the same problems that are to be split",
            )
    sets = UnionFind(ordered)
    last: dict[str, str] = {}
    for problem_id in ordered:
        cluster = clustering.cluster_of[problem_id]
        sets.join(last.setdefault(cluster, problem_id), problem_id)
    for edge in shared_key_edges(tuple(ordered.values()), "family"):
        sets.join(edge.one, edge.other)
    for one, other in together:
        sets.join(one, other)
    return sets.sets()


def check_fractions(fractions: Mapping[str, float]) -> None:
    """Raise ConfigError unless the fractions are non-negative and sum to 1."""
    if not fractions or min(fractions.values()) < 0 or not abs(sum(fractions.values()) - 1) < 1e-9:
        raise ConfigError(
            f"pool fractions {dict(fractions)} are not a split of 1",
            remedy="give every pool a share of at least 0, together 1",
        )


def _hash(salt: str, purpose: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\0{purpose}\0{text}".encode()).hexdigest()


def _anchor(members: Iterable[Problem], salt: str) -> str:
    """What names a unit: a family where there is one, else a product, else a problem.

    Families come first because a grown unit mostly gains problems of the families it has. The
    anchor is the feature with the smallest hash, so that it survives most growth.
    """
    held = tuple(members)
    features = {f"family {key}" for problem in held for key in family_keys(problem)}
    if not features:
        features = {f"product {key}" for problem in held for key in product_keys(problem)}
    if not features:
        features = {f"problem {problem.problem_id}" for problem in held}
    return min(features, key=lambda feature: (_hash(salt, "anchor", feature), feature))


def _draw(anchor: str, fractions: Mapping[str, float], salt: str, whole: float = 1.0) -> str:
    """The pool of an anchor: its hash as a number in [0, 1), looked up in the cumulated shares.

    Where wordings leave only some pools open, in [0, sum of their shares). A second hash, not the
    one that chose the anchor: the smallest of many hashes is small, and would send every large unit
    to the first pool.
    """
    position = int(_hash(salt, "pool", anchor)[:13], 16) / 16**13 * whole
    reached = 0.0
    pools = [pool for pool, share in fractions.items() if share > 0]
    for pool in pools:
        reached += fractions[pool]
        if position < reached:
            return pool
    return pools[-1]


def assign_pools(
    problems: Iterable[Problem],
    clustering: Clustering,
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    salt: str = DEFAULT_SALT,
    previous: Mapping[str, str] | None = None,
    together: Iterable[tuple[str, str]] = (),
    heldout_banks: Sequence[str] = (),
) -> dict[str, str]:
    """Assign every problem to a pool; problems that share a cluster or a family go together.

    Args:
        problems: the problems to split; their order does not matter.
        clustering: leak clusters of the same problems.
        fractions: pool -> share of the units, in a fixed order; the shares sum to 1.
        salt: another salt is another split.
        previous: problem id -> pool of an earlier assignment; it never changes. Without it, units
            that gained no member keep their pool, and a grown unit keeps it with the probability
            that its anchor survives.
        together: pairs of problems that are kept on one side, as `split_units` takes them.
        heldout_banks: paraphrase banks whose problems never train: their units are drawn among
            the measuring pools.

    Returns:
        Problem id -> pool, in problem-id order.

    Raises:
        ConfigError: fractions that are no split of 1, a previous pool without a share, or no
            measuring pool for held-out wordings.
        IntegrityError: a unit holds problems that `previous` put into different pools, or a
            held-out wording that it put where something trains or is chosen.
    """
    check_fractions(fractions)
    check_banks(heldout_banks, fractions)
    ordered = by_id(problems)
    pool_of: dict[str, str] = {}
    units = split_units(ordered.values(), clustering, together)
    members = [[ordered[name] for name in unit] for unit in units]
    earlier = kept_pools(units, ordered, fractions, previous, clustering)
    check_kept(members, earlier, heldout_banks)
    for unit, held, kept in zip(units, members, earlier, strict=True):
        shares = open_shares(held, fractions, heldout_banks)
        whole = 1.0 if shares is fractions else sum(shares.values())
        pool = kept or _draw(_anchor(held, salt), shares, salt, whole)
        pool_of.update(dict.fromkeys(unit, pool))
    return dict(sorted(pool_of.items()))


def kept_pools(
    units: Iterable[tuple[str, ...]],
    problems: Mapping[str, Problem],
    fractions: Mapping[str, float],
    previous: Mapping[str, str] | None,
    clustering: Clustering,
) -> list[str]:
    """For each unit the pool that an earlier assignment gave it, "" for a new unit.

    Raises:
        ConfigError: an earlier pool without a share.
        IntegrityError: a unit holds problems of two earlier pools; names the joining edges.
    """
    earlier = {name: pool for name, pool in (previous or {}).items() if name in problems}
    stray = sorted(set(earlier.values()) - set(fractions))
    if stray:
        raise ConfigError(
            f"the earlier assignment uses pool {stray[0]!r}, which has no share",
            remedy="name every earlier pool in the fractions, with 0 to take in no new problems",
        )
    pools = []
    for unit in units:
        known = {name: earlier[name] for name in unit if name in earlier}
        if len(set(known.values())) > 1:
            raise _joined(known, problems, unit, clustering)
        pools.append(next(iter(known.values()), ""))
    return pools


def _joined(
    known: Mapping[str, str],
    problems: Mapping[str, Problem],
    unit: tuple[str, ...],
    clustering: Clustering,
) -> IntegrityError:
    """The error for a unit that joins two pools: names a problem of each and the joining edges."""
    first = next(iter(known))
    other = next(name for name, pool in known.items() if pool != known[first])
    members = tuple(problems[name] for name in unit)
    joins = [
        f"{edge.one} - {edge.other} by {rule} {edge.key[:60]}"
        for rule in (*EDGE_KINDS, "family")
        for edge in shared_key_edges(members, rule)
    ]
    joins += [
        f"{edge.one} - {edge.other} by {kind} {edge.key[:60]}"
        for kind, edges in clustering.edges.items()
        if kind not in EDGE_KINDS
        for edge in edges
        if edge.one in unit
    ]
    fresh = [name for name in unit if name not in known]
    return IntegrityError(
        f"problems {first!r} ({known[first]}) and {other!r} ({known[other]}) are now joined: "
        + "; ".join(joins[:4])
        + (f" and {len(joins) - 4} more" if len(joins) > 4 else ""),
        remedy=f"leave out the joining problem{'s' if len(fresh) > 1 else ''} "
        f"{', '.join(fresh[:5])}, or retire one of the two"
        if fresh
        else "leave out one of the two",
    )


def check_disjoint(pools: Mapping[str, Iterable[Problem]]) -> Disjointness:
    """Recompute every rule from the problems of finished pools and compare the pools pairwise.

    Compares problem ids, ground-truth products, specifications, normalised texts, title families
    and, last, the clusters that all of these close transitively.

    Raises:
        IntegrityError: two pools share a key; names the rule, the key and both problems.
    """
    held = {pool: tuple(problems) for pool, problems in pools.items()}
    compared = {}
    for rule in RULES:
        owner: dict[str, tuple[str, str]] = {}
        for pool, problems in held.items():
            for problem in problems:
                for key in keys_of(problem, rule):
                    here = (pool, problem.problem_id)
                    there = owner.setdefault(key, here)
                    if there[0] != pool:
                        raise _leak(rule, key, there, here)
        compared[rule] = len(owner)
    compared["cluster"] = _check_clusters(held)
    return Disjointness(
        problems={pool: len(problems) for pool, problems in held.items()}, keys=compared
    )


def _check_clusters(held: Mapping[str, tuple[Problem, ...]]) -> int:
    pool_of = {problem.problem_id: pool for pool, problems in held.items() for problem in problems}
    everything = {problem.problem_id: problem for ps in held.values() for problem in ps}
    clustering = leak_clusters(everything.values())
    for cluster, members in clustering.members.items():
        for name in members:
            if pool_of[name] != pool_of[members[0]]:
                one = (pool_of[members[0]], members[0])
                raise _leak("cluster", cluster, one, (pool_of[name], name))
    return len(clustering.members)


def _leak(rule: str, key: str, one: tuple[str, str], other: tuple[str, str]) -> IntegrityError:
    return IntegrityError(
        f"pools {one[0]!r} and {other[0]!r} share {rule} {key[:80]!r}: "
        f"problems {one[1]!r} and {other[1]!r}",
        remedy="split by assign_pools, or move both problems to one pool",
    )
