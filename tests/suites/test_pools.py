"""A cluster or family never stands in two pools; growth moves nothing without an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import ConfigError, IntegrityError, Problem
from palio.suites import assign_pools, check_disjoint, leak_clusters, split_units
from palio.suites.stratified import stratified_pools
from tests.suites.making import made_problem, problem_sets

THIRDS = {"train": 0.4, "development": 0.3, "heldout": 0.3}


def split(
    problems: tuple[Problem, ...] | list[Problem], previous: dict[str, str] | None = None
) -> dict[str, str]:
    return assign_pools(problems, leak_clusters(problems), THIRDS, "salt", previous)


def by_pool(
    problems: tuple[Problem, ...], pool_of: dict[str, str], pools: Iterable[str] = THIRDS
) -> dict[str, list[Problem]]:
    return {pool: [p for p in problems if pool_of[p.problem_id] == pool] for pool in pools}


@given(problem_sets(), st.randoms(use_true_random=False))
def test_a_split_is_disjoint_by_every_rule_and_needs_no_order(
    problems: tuple[Problem, ...], random: Random
) -> None:
    pool_of = split(problems)
    shuffled = list(problems)
    random.shuffle(shuffled)
    assert split(shuffled) == pool_of
    assert set(pool_of) == {p.problem_id for p in problems}
    report = check_disjoint(by_pool(problems, pool_of))
    assert sum(report.problems.values()) == len(problems)


@given(problem_sets(), problem_sets(prefix="q", most=4))
def test_growth_moves_nothing_or_says_so(
    old: tuple[Problem, ...], new: tuple[Problem, ...]
) -> None:
    before = split(old)
    grown = (*old, *new)
    joined = any(
        len({before[name] for name in unit if name in before}) > 1
        for unit in split_units(grown, leak_clusters(grown))
    )
    if joined:
        with pytest.raises(IntegrityError, match="are now joined"):
            split(grown, before)
    else:
        after = split(grown, before)
        assert {name: after[name] for name in before} == before
        check_disjoint(by_pool(grown, after))


@given(problem_sets(), problem_sets(prefix="q", most=4))
def test_units_that_did_not_grow_keep_their_pool_without_any_state(
    old: tuple[Problem, ...], new: tuple[Problem, ...]
) -> None:
    before, after = split(old), split((*old, *new))
    untouched = set(split_units(old, leak_clusters(old)))
    for unit in split_units((*old, *new), leak_clusters((*old, *new))):
        if unit in untouched:
            assert {after[name] for name in unit} == {before[name] for name in unit}


def test_a_problem_of_a_known_family_joins_its_pool_without_any_state() -> None:
    old = [made_problem(f"p{n}", (str(n),), families=(f"f{n % 10}",)) for n in range(40)]
    before = split(old)
    for n in range(10):
        grown = [*old, made_problem("new", ("99",), families=(f"f{n}",))]
        assert {name: pool for name, pool in split(grown).items() if name != "new"} == before


def test_an_edge_that_joins_two_pools_names_the_problems() -> None:
    old = [made_problem("a", ("1",)), made_problem("b", ("2",))]
    bridge = made_problem("bridge", ("1", "2"))
    before = {"a": "train", "b": "heldout"}
    with pytest.raises(IntegrityError) as caught:
        split([*old, bridge], before)
    text = str(caught.value)
    assert "'a' (train) and 'b' (heldout) are now joined" in text
    assert "product compact-1/1" in text
    assert "bridge" in caught.value.remedy


def test_shares_are_close_for_many_units_and_large_units_are_not_biased() -> None:
    singles = [made_problem(f"s{n}", (f"s{n}",)) for n in range(3000)]
    bundles = [
        made_problem(f"b{n}-{k}", (f"b{n}-{k}",), families=(f"fam{n}",))
        for n in range(600)
        for k in range(5)
    ]
    pool_of = assign_pools([*singles, *bundles], leak_clusters([*singles, *bundles]), THIRDS, "s")
    for members in (singles, bundles):
        counts = Counter(pool_of[p.problem_id] for p in members)
        for pool, share in THIRDS.items():
            assert counts[pool] / len(members) == pytest.approx(share, abs=0.06)


def test_another_salt_is_another_split() -> None:
    problems = [made_problem(f"p{n}", (str(n),)) for n in range(50)]
    clustering = leak_clusters(problems)
    assert assign_pools(problems, clustering, salt="a") != assign_pools(
        problems, clustering, salt="b"
    )


@pytest.mark.parametrize(
    "fractions", [{}, {"train": 0.5}, {"train": 1.5, "heldout": -0.5}, {"train": float("nan")}]
)
def test_fractions_must_split_one(fractions: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="fractions"):
        assign_pools([], leak_clusters([]), fractions)


def test_an_earlier_pool_without_a_share_is_refused() -> None:
    problems = [made_problem("a")]
    with pytest.raises(ConfigError, match="'open'"):
        split(problems, {"a": "open"})


def test_an_unclustered_problem_is_refused() -> None:
    with pytest.raises(IntegrityError, match="no leak cluster"):
        split_units([made_problem("a")], leak_clusters([]))


CLEAN = made_problem("a", ("1",), query="one", title="T", families=("f",))


@pytest.mark.parametrize(
    ("rule", "leak"),
    [
        ("problem", CLEAN),
        ("product", made_problem("b", ("1",))),
        ("spec", made_problem("b", ("2",), title="t ")),
        ("text", made_problem("b", ("2",), query="ONE")),
        ("family", made_problem("b", ("2",), families=("F",))),
    ],
)
def test_a_leak_is_named_by_rule_and_pair(rule: str, leak: Problem) -> None:
    with pytest.raises(IntegrityError) as caught:
        check_disjoint({"train": [CLEAN], "heldout": [leak]})
    assert f"share {rule} " in str(caught.value)
    assert "'a'" in str(caught.value)
    assert repr(leak.problem_id) in str(caught.value)


def test_the_same_keys_inside_one_pool_are_no_leak() -> None:
    twin = msgspec.structs.replace(CLEAN, problem_id="twin")
    report = check_disjoint({"train": [CLEAN, twin], "heldout": [made_problem("c", ("9",))]})
    assert report.keys == {
        "problem": 3,
        "product": 2,
        "spec": 2,
        "text": 2,
        "family": 1,
        "cluster": 2,
    }


BANKS = ("prose", "ask", "list")


def worded(problems: tuple[Problem, ...], random: Random) -> tuple[Problem, ...]:
    return tuple(msgspec.structs.replace(p, bank=random.choice(BANKS)) for p in problems)


@given(
    problem_sets(),
    st.randoms(use_true_random=False),
    st.sampled_from([assign_pools, stratified_pools]),
    st.sampled_from([(), ("list",), ("list", "ask")]),
)
def test_a_held_out_wording_never_trains_and_takes_its_whole_unit_along(
    plain: tuple[Problem, ...],
    random: Random,
    assign: Callable[..., dict[str, str]],
    banks: tuple[str, ...],
) -> None:
    problems = worded(plain, random)
    clustering = leak_clusters(problems)
    shares = {"train": 0.5, "development": 0.2, "heldout": 0.2, "never-touch": 0.1}
    before = assign(plain, leak_clusters(plain), shares, "salt")
    pool_of = assign(problems, clustering, shares, "salt", heldout_banks=banks)
    assert set(pool_of) == set(before)
    check_disjoint(by_pool(problems, pool_of, shares))
    bank_of = {problem.problem_id: problem.bank for problem in problems}
    for unit in split_units(problems, clustering):
        assert len({pool_of[name] for name in unit}) == 1
        held = any(bank_of[name] in banks for name in unit)
        if held:
            assert pool_of[unit[0]] in ("heldout", "never-touch")
        elif assign is assign_pools:
            assert pool_of[unit[0]] == before[unit[0]]  # the others stay where they were
    if not banks:
        assert pool_of == before


def test_held_out_units_go_to_the_measuring_pools_by_their_shares() -> None:
    problems = [made_problem(f"p{n}", (str(n),), bank=BANKS[n % 3]) for n in range(3000)]
    shares = {"train": 0.7, "development": 0.1, "heldout": 0.15, "never-touch": 0.05}
    pools = assign_pools(problems, leak_clusters(problems), shares, "s", heldout_banks=("list",))
    counts = Counter(pools[p.problem_id] for p in problems if p.bank == "list")
    assert counts.total() == 1000
    assert counts.keys() == {"heldout", "never-touch"}
    assert counts["heldout"] / 1000 == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("assign", [assign_pools, stratified_pools])
def test_an_earlier_pool_that_a_wording_may_not_have_is_refused(
    assign: Callable[..., dict[str, str]],
) -> None:
    problems = [made_problem("a", bank="list"), made_problem("b", ("8",), bank="ask")]
    clustering = leak_clusters(problems)
    kept = {"a": "heldout", "b": "train"}
    assert assign(problems, clustering, previous=kept, heldout_banks=("list",)) == kept
    with pytest.raises(IntegrityError, match=r"'b' is in the words of bank 'ask'.* kept in train"):
        assign(problems, clustering, previous=kept, heldout_banks=("ask",))
    with pytest.raises(ConfigError, match="no pool to go to"):
        assign(problems, clustering, {"train": 1.0}, heldout_banks=("ask",))
