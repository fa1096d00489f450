"""Problems that share a product, specification or text are one cluster; the edge says why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import ConfigError, InputError, Problem, Reward
from palio.suites import leak_clusters, normalise_text, spec_key
from palio.suites.clusters import EDGE_KINDS, EdgeKind
from palio.suites.keys import keys_of
from tests.suites.making import BETWEEN, VOUCHER, made_problem, problem_sets, public_problems


@pytest.mark.shared
def test_the_public_tasks_have_880_clusters_under_the_product_edge(shared_data: Path) -> None:
    clustering = leak_clusters(public_problems(shared_data), edges=("product",))
    assert len(clustering.cluster_of) == 900
    assert len(clustering.members) == 880
    shared_products = {edge.key for edge in clustering.edges["product"]}
    assert len(shared_products) == 31  # products that are the target of two or more tasks


def test_ids_of_different_catalogues_are_different_products() -> None:
    one = made_problem("a", ("7",), catalogue="compact-1")
    other = made_problem("b", ("7",), catalogue="compact-2")
    assert len(leak_clusters([one, other]).members) == 2
    same = leak_clusters([one, msgspec.structs.replace(other, catalogue="compact-1")])
    assert len(same.members) == 1
    assert [edge.key for edge in same.edges["product"]] == ["compact-1/7"]


def wish(**fields: object) -> Problem:
    reward = {
        "product_id": "1",
        "title": ("Blue  Wool\tScarf",),
        "sku_options": ({"size": "XL"}, {"color": "blue"}),
        "attributes": ({"material": ("wool", "silk")},),
        "service": ("COD", "official"),
        "price": (BETWEEN,),
    }
    return Problem(
        problem_id="w", kind="product", query="q", rewards=(Reward(**{**reward, **fields}),)
    )


@pytest.mark.parametrize(
    "variant",
    [
        {"title": ("blue wool scarf",)},
        {"title": ("\uff22lue wool scarf",)},  # full-width B
        {"title": ("blue wo\u200bol scarf",)},
        {"sku_options": ({"color": "Blue", "size": "xl"},)},
        {"attributes": ({"material": ("silk",)}, {"material": ("wool",)})},
        {"service": ("official", "COD")},
        {"product_id": "2"},
    ],
)
def test_a_reordered_specification_is_the_same(variant: dict[str, object]) -> None:
    assert spec_key(wish(**variant)) == spec_key(wish())


@pytest.mark.parametrize(
    "change",
    [{"title": ("red wool scarf",)}, {"service": ()}, {"price": ()}, {"sku_options": ()}],
)
def test_another_wish_is_another_specification(change: dict[str, object]) -> None:
    assert spec_key(wish(**change)) != spec_key(wish())


def test_a_re_expressed_voucher_still_matches() -> None:
    plain = made_problem("a", ("1",), title="mug")
    priced = made_problem("b", ("2",), title="Mug", kind="voucher", voucher=VOUCHER)
    cheaper = msgspec.structs.replace(
        priced, problem_id="c", voucher=msgspec.structs.replace(VOUCHER, budget=80.0)
    )
    clustering = leak_clusters([plain, priced, cheaper], edges=("spec",))
    assert len(clustering.members) == 1
    assert [(e.one, e.other) for e in clustering.edges["spec"]] == [("a", "b"), ("b", "c")]


def test_an_empty_specification_or_text_matches_nothing() -> None:
    bare = [
        Problem(problem_id=n, kind="web", query=q, rewards=(Reward(product_id=n),))
        for n, q in (("a", "\u200b"), ("b", " "))
    ]
    assert len(leak_clusters(bare).members) == 2


def test_texts_that_differ_in_white_space_are_one() -> None:
    one = made_problem("a", ("1",), query="Find  me a mug.\n\nBlue")
    other = made_problem("b", ("2",), query=" find me a\u00a0mug. blue")
    clustering = leak_clusters([one, other])
    assert [edge.key for edge in clustering.edges["text"]] == ["find me a mug. blue"]


def test_bad_requests_are_refused() -> None:
    twice = [made_problem("a"), made_problem("a")]
    with pytest.raises(InputError, match="'a' occurs twice"):
        leak_clusters(twice)
    with pytest.raises(ConfigError, match="colour"):
        leak_clusters([], edges=("colour",))  # type: ignore[arg-type]


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise_text(normalise_text(text)) == normalise_text(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_the_short_way_for_ascii_gives_what_the_long_way_gives(text: str) -> None:
    assert normalise_text(text) == normalise_text(text + " \u200b")


def brute_force(problems: tuple[Problem, ...], edges: tuple[EdgeKind, ...]) -> set[frozenset[str]]:
    """Clusters by repeated merging of sets that share any key: slow, and no union-find."""
    groups = [
        ({p.problem_id}, {(rule, key) for rule in edges for key in keys_of(p, rule)})
        for p in problems
    ]
    while True:
        for index, (ids, keys) in enumerate(groups):
            other = next((g for g in groups[index + 1 :] if g[1] & keys), None)
            if other:
                groups.remove(other)
                groups[index] = (ids | other[0], keys | other[1])
                break
        else:
            return {frozenset(ids) for ids, _ in groups}


@given(problem_sets(), st.randoms(use_true_random=False), st.sets(st.sampled_from(EDGE_KINDS)))
def test_clusters_are_the_transitive_closure_in_any_order(
    problems: tuple[Problem, ...], random: object, chosen: set[EdgeKind]
) -> None:
    edges = tuple(kind for kind in EDGE_KINDS if kind in chosen)
    shuffled = list(problems)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    clustering = leak_clusters(problems, edges)
    assert clustering == leak_clusters(shuffled, edges)
    assert {frozenset(ids) for ids in clustering.members.values()} == brute_force(problems, edges)
    assert all(
        name in clustering.members[cluster] for name, cluster in clustering.cluster_of.items()
    )
