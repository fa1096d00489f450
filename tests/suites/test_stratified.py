"""Stratified pools never part a unit, look alike, and are no worse than scikit-learn's folds."""

from __future__ import annotations

import warnings
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palio.records import IntegrityError, Problem
from palio.suites import check_disjoint, leak_clusters, split_units
from palio.suites.clusters import Clustering
from palio.suites.stratified import size_class, strata_of, stratified_pools
from tests.suites.making import made_problem, problem_sets

THIRDS = {"train": 0.6, "development": 0.1, "heldout": 0.3}


def groups(seed: int, most: int = 400) -> tuple[Problem, ...]:
    """Problems in groups of 1 to 9 that share a product, with a favourite kind each."""
    rng = Random(seed)
    count = rng.randrange(60, most)
    found: list[Problem] = []
    while len(found) < count:
        kind = rng.choice(("product", "shop", "web"))
        product = str(len(found))
        found += [
            made_problem(
                f"p{len(found) + place:04}",
                (product,),
                kind=rng.choice((kind, kind, "product")),
                difficulty=rng.choice(("easy", "medium", "hard", "hard")),
            )
            for place in range(rng.choice((1, 1, 1, 2, 3, 5, 9)))
        ]
    return tuple(found)


def distance(
    problems: tuple[Problem, ...],
    clustering: Clustering,
    pool_of: dict[str, str],
    shares: dict[str, float],
) -> float:
    """Chi-square distance of every pool from its share of every stratum."""
    total: Counter[str] = Counter()
    held = {pool: Counter[str]() for pool in shares}
    for problem in problems:
        size = len(clustering.members[clustering.cluster_of[problem.problem_id]])
        strata = (problem.kind, problem.difficulty, f"size {size_class(size)}")
        total.update(strata)
        held[pool_of[problem.problem_id]].update(strata)
    return sum(
        (held[pool][name] - share * count) ** 2 / (share * count)
        for pool, share in shares.items()
        for name, count in total.items()
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([5, 10]))
def test_the_balance_is_at_least_that_of_scikit_learn(seed: int, folds: int) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    problems = groups(seed)
    clustering = leak_clusters(problems)
    shares = {str(fold): 1 / folds for fold in range(folds)}
    ours = stratified_pools(problems, clustering, shares, salt=str(seed))
    labels = [f"{problem.kind} {problem.difficulty}" for problem in problems]
    clusters = [clustering.cluster_of[problem.problem_id] for problem in problems]
    splitter = selection.StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    theirs = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some labels have fewer members than there are folds
        for fold, (_, rows) in enumerate(splitter.split(labels, labels, clusters)):
            theirs.update({problems[row].problem_id: str(fold) for row in rows})
    assert distance(problems, clustering, ours, shares) <= distance(
        problems, clustering, theirs, shares
    )


@given(problem_sets(), st.randoms(use_true_random=False))
def test_no_unit_is_parted_in_any_order(problems: tuple[Problem, ...], random: Random) -> None:
    clustering = leak_clusters(problems)
    pool_of = stratified_pools(problems, clustering, THIRDS, "s")
    shuffled = list(problems)
    random.shuffle(shuffled)
    assert stratified_pools(shuffled, clustering, THIRDS, "s") == pool_of
    check_disjoint({p: [q for q in problems if pool_of[q.problem_id] == p] for p in THIRDS})
    for unit in split_units(problems, clustering):
        assert len({pool_of[name] for name in unit}) == 1


def test_shares_are_met_to_a_unit() -> None:
    problems = groups(3)
    clustering = leak_clusters(problems)
    pool_of = stratified_pools(problems, clustering, THIRDS, "s")
    for kind in ("product", "shop", "web"):
        names = [p.problem_id for p in problems if p.kind == kind]
        for pool, share in THIRDS.items():
            count = sum(pool_of[name] == pool for name in names)
            assert abs(count - share * len(names)) <= 5


def test_earlier_pools_are_kept_and_a_join_of_two_is_an_error() -> None:
    old, new = groups(4)[:80], groups(4)
    before = stratified_pools(old, leak_clusters(old), THIRDS, "s")
    after = stratified_pools(new, leak_clusters(new), THIRDS, "another", previous=before)
    assert {name: after[name] for name in before} == before
    bridge = (made_problem("a", ("1",)), made_problem("b", ("1",)))
    with pytest.raises(IntegrityError, match="now joined"):
        stratified_pools(
            bridge, leak_clusters(bridge), THIRDS, previous={"a": "train", "b": "heldout"}
        )


def test_another_salt_is_another_split() -> None:
    problems = groups(5)
    clustering = leak_clusters(problems)
    assert stratified_pools(problems, clustering, THIRDS, "a") != stratified_pools(
        problems, clustering, THIRDS, "b"
    )


def test_every_problem_counts_once_in_each_kind_of_stratum() -> None:
    counts = strata_of([made_problem("a", ("1",)), made_problem("b", ("1", "2"))])
    assert counts == {"kind product": 1, "kind shop": 1, "difficulty ": 2, "size 2-3": 2}
