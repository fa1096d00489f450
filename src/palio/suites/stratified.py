"""A split whose pools look alike in kind, difficulty and cluster size, and that parts no unit.

Units are placed one by one, those that weigh most first, each into the pool where it leaves the
smallest distance from the wanted counts of every stratum (a chi-square distance). Ties and order
follow a salted hash, so the split depends on the problems and the salt alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from palio.records import Problem
from palio.suites.clusters import Clustering, by_id
from palio.suites.pools import (
    DEFAULT_FRACTIONS,
    DEFAULT_SALT,
    check_fractions,
    kept_pools,
    split_units,
)
from palio.suites.wordings import check_banks, check_kept, open_shares


def size_class(size: int) -> str:
    """The stratum of a unit's size: 1, 2-3, 4-7, 8 and more."""
    return "1" if size == 1 else "2-3" if size < 4 else "4-7" if size < 8 else "8+"


def strata_of(unit: Sequence[Problem]) -> Counter[str]:
    """How many problems of each stratum a unit brings; every problem counts in three."""
    counts: Counter[str] = Counter()
    for problem in unit:
        counts[f"kind {problem.kind}"] += 1
        counts[f"difficulty {problem.difficulty}"] += 1
        counts[f"size {size_class(len(unit))}"] += 1
    return counts


def stratified_pools(
    problems: Iterable[Problem],
    clustering: Clustering,
    fractions: Mapping[str, float] = DEFAULT_FRACTIONS,
    salt: str = DEFAULT_SALT,
    previous: Mapping[str, str] | None = None,
    together: Iterable[tuple[str, str]] = (),
    heldout_banks: Sequence[str] = (),
) -> dict[str, str]:
    """Assign every problem to a pool so that each pool has its share of every stratum.

    Arguments, result and errors are those of `palio.suites.pools.assign_pools`. Unlike there, a
    problem that is added can move others unless `previous` holds them.
    """
    check_fractions(fractions)
    check_banks(heldout_banks, fractions)
    ordered = by_id(problems)
    units = split_units(ordered.values(), clustering, together)
    kept = kept_pools(units, ordered, fractions, previous, clustering)
    members = [[ordered[name] for name in unit] for unit in units]
    check_kept(members, kept, heldout_banks)
    counts = [strata_of(unit) for unit in members]
    placing = _Placing(sum(counts, Counter()), fractions)
    pool_of: dict[str, str] = {}
    waiting = []
    for place, (unit, pool) in enumerate(zip(units, kept, strict=True)):
        if pool:
            placing.put(pool, counts[place])
            pool_of.update(dict.fromkeys(unit, pool))
        else:
            mark = hashlib.sha256(f"{salt}\0stratified\0{unit[0]}".encode()).hexdigest()
            waiting.append((-len(unit), mark, place))
    for _, _, place in sorted(waiting):
        shares = open_shares(members[place], fractions, heldout_banks)
        pool = placing.best(counts[place], shares)
        placing.put(pool, counts[place])
        pool_of.update(dict.fromkeys(units[place], pool))
    return dict(sorted(pool_of.items()))


class _Placing:
    """How many problems of each stratum each pool holds, and how many it should."""

    def __init__(self, total: Counter[str], fractions: Mapping[str, float]) -> None:
        self._total = total
        self._shares = {pool: share for pool, share in fractions.items() if share > 0}
        self._held = {pool: Counter[str]() for pool in fractions}

    def put(self, pool: str, counts: Counter[str]) -> None:
        """A unit goes into a pool."""
        self._held[pool].update(counts)

    def best(self, counts: Counter[str], among: Collection[str]) -> str:
        """The pool of `among` where a unit leaves the least distance; the first of equals."""
        pools = [pool for pool in self._shares if pool in among]
        return min(pools, key=lambda pool: self._change(pool, counts))

    def _change(self, pool: str, counts: Counter[str]) -> float:
        """By how much the chi-square distance of a pool changes when a unit joins it."""
        held, share = self._held[pool], self._shares[pool]
        change = 0.0
        for stratum, more in counts.items():
            wanted = share * self._total[stratum]
            change += more * (2 * (held[stratum] - wanted) + more) / wanted
        return change
