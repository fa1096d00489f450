"""Before the first row it is settled which pool every problem belongs to, and which have no rows.

Never-touch problems are kept from every file. A problem that is suspected of being one with a
problem of another pool is quarantined: it keeps its pool, and none of its rows is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from palio.corpus.candidate import Candidate, Selected
from palio.corpus.config import NEVER, POOLS, CorpusConfig
from palio.corpus.gates import Drop, Gate
from palio.corpus.screening import NEVER_TOUCH
from palio.records import Problem, digest
from palio.rollout.verdicts import Judged
from palio.suites.clusters import Clustering, by_id
from palio.suites.embedding import VectorStore
from palio.suites.guard import Guarded, Suspicion, guard
from palio.suites.pools import assign_pools, split_units
from palio.suites.quarantine import quarantined
from palio.suites.stratified import stratified_pools
from palio.suites.wordings import HeldoutWordings, check_known, count_wordings

GUARD = "guard"
"""The step that withholds rows of quarantined problems."""


class Separation(NamedTuple):
    """Pools of all problems, and the proof.

    Attributes:
        pool_of: problem id -> pool, in problem-id order.
        quarantine: problem id -> why it is quarantined.
        earlier: digest of the assignment that pools were kept from, "" without one.
        carried: problems that stand where that assignment put them although the rule alone would
            not say so, in id order.
        wordings: what was held out by wording, None when nothing was.
    """

    guarded: Guarded
    pool_of: dict[str, str]
    quarantine: dict[str, Suspicion]
    earlier: str = ""
    carried: tuple[str, ...] = ()
    wordings: HeldoutWordings | None = None

    @property
    def clustering(self) -> Clustering:
        """The leak clusters."""
        return self.guarded.clustering


def separate(
    problems: Iterable[Problem],
    config: CorpusConfig,
    previous: Mapping[str, str] | None = None,
    store: VectorStore | None = None,
) -> Separation:
    """Cluster the problems, assign their pools, and quarantine what is suspected across pools.

    Raises:
        IntegrityError: a unit joins two pools of `previous`, or a cannot-link is joined.
        MissingDependencyError: embedding edges without their model.
        ConfigError: no problem has a wording that is to be held out.
    """
    rows = tuple(problems)
    check_known(config.banks, rows)
    guarded = guard(rows, config.guard, config.edges, store)
    stratified = config.guard.split == "stratified"
    split = stratified_pools if stratified else assign_pools
    together = guarded.together() if config.guard.weak == "together" else ()
    # in an order of their own: that of a configuration is not part of its digest
    fractions = {pool: config.fractions[pool] for pool in ALL if pool in config.fractions}

    def drawn(earlier: Mapping[str, str] | None) -> dict[str, str]:
        shares = (fractions, config.salt)
        return split(rows, guarded.clustering, *shares, earlier, together, config.banks)

    pool_of = drawn(previous)
    wordings = None
    if config.banks:
        units = split_units(rows, guarded.clustering, together)
        public = (name for name, pool in pool_of.items() if pool != NEVER)
        wordings = count_wordings(units, by_id(rows), config.banks, public)
    out = quarantined(pool_of, guarded.suspicions, ALL)
    if not previous:
        return Separation(guarded, pool_of, out, wordings=wordings)
    # a stratified split depends on all that was kept, so that it has no opinion on what was
    fresh = {} if stratified else drawn(None)
    kept = (name for name in pool_of if name in previous)
    carried = tuple(name for name in kept if fresh.get(name) != pool_of[name])
    return Separation(guarded, pool_of, out, digest(dict(previous)), carried, wordings)


ALL = (*POOLS, NEVER)
"""Every pool, in the order in which the shares of a split are added up."""


def withheld(candidates: Iterable[Candidate], separation: Separation) -> Selected:
    """Rows of problems that may be published, and those of quarantined ones with the reason."""
    kept, dropped = [], []
    for candidate in sorted(candidates, key=lambda each: each.trajectory_id):
        problem = candidate.problem_id
        suspicion = separation.quarantine.get(problem)
        if suspicion is None:
            kept.append(candidate)
            continue
        others = [name for name in suspicion.problems if name != problem]
        detail = f"{problem} may be {others[0]}: {suspicion.kind} {suspicion.key}"
        dropped.append((candidate, Drop(reason="quarantined", detail=detail)))
    return kept, dropped


def never_touched(separation: Separation, refuse: Gate | None) -> Gate:
    """A gate that refuses rows of never-touch problems, and what `refuse` refuses.

    A refused row is kept without its body: the rejects are published too.
    """

    def gate(judged: Judged, config: CorpusConfig) -> Drop | None:
        problem = judged.trajectory.problem_id
        if separation.pool_of.get(problem) == NEVER:
            return Drop(reason=NEVER_TOUCH, detail=problem)
        return refuse(judged, config) if refuse is not None else None

    return gate
