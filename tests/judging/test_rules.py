from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.judging.encoders import StubEncoder
from palio.judging.rules import count, counters, wanted
from palio.records import Product, Profile
from tests.judging.runs import product, ranged, reward

PROFILES: tuple[Profile, ...] = ("upstream", "oro", "strict")


@pytest.mark.parametrize(
    ("similarity", "upstream", "oro"), [(0.49999, 0, 0), (0.5, 1, 0), (0.69999, 1, 0), (0.7, 1, 1)]
)
def test_title_thresholds_are_inclusive(similarity: float, upstream: int, oro: int) -> None:
    want = wanted(reward())
    for profile, hit in (("upstream", upstream), ("oro", oro), ("strict", oro)):
        got = count(product(), want, profile, StubEncoder(similarity))  # type: ignore[arg-type]
        assert got.rule == got.hits[0] == hit


@pytest.mark.parametrize(
    ("mode", "low", "high", "price", "hit"),
    [
        ("less than", None, 100, 100, 1),
        ("less than", None, 100, 100.01, 0),
        ("less than", 500, 100, 3, 1),
        ("greater than", 100, None, 100, 1),
        ("greater than", 100, None, 99.99, 0),
        ("greater than", 100, 50, 1000, 1),
        ("between", 100, 200, 100, 1),
        ("between", 100, 200, 200, 1),
        ("between", 100, 200, 200.5, 0),
        ("between", 100, 200, float("nan"), 0),
    ],
)
def test_price_ranges_are_inclusive(
    mode: str, low: float | None, high: float | None, price: float, hit: int
) -> None:
    want = wanted(reward(title=(), price=(ranged(mode, low, high),)))
    assert count(product(price=price), want, "oro", StubEncoder()).hits == (0, hit, 0, 0)


def test_each_title_range_and_tag_is_one_unit() -> None:
    want = wanted(
        reward(
            title=("a", "b"),
            price=(ranged("less than", None, 10), ranged("greater than", 5, None)),
            service=("COD", "official"),
        )
    )
    got = count(product(price=50, service=("COD",)), want, "oro", StubEncoder(0.9))
    assert got.totals == (2, 2, 2, 0)
    assert got.hits == (2, 1, 1, 0)
    assert got.rule == 4 / 6


def test_pairs_of_two_skus_do_not_add_up() -> None:
    want = wanted(
        reward(
            title=(),
            sku_options=({"color": "blue", "size": "m"},),
            attributes=({"make": ("x", "y")},),
        )
    )
    skus = {"1": {"color": "blue", "size": "s"}, "2": {"color": "red", "size": "m"}}
    got = count(product(sku_options=skus, attributes={"make": ("x",)}), want, "oro", StubEncoder())
    assert got.totals[3] == 4
    assert got.hits[3] == 2


def test_options_and_attributes_stand_in_for_each_other() -> None:
    want = wanted(reward(title=(), sku_options=({"a": "1"},), attributes=({"b": ("2",)},)))
    swapped = product(sku_options={"1": {"b": "2"}}, attributes={"a": ("1",)})
    assert count(swapped, want, "upstream", StubEncoder()).hits[3] == 2


def test_pairs_are_exact_and_case_sensitive() -> None:
    want = wanted(reward(title=(), attributes=({"a": ("Blue",)},)))
    for value in ("blue", "Blue ", "dark Blue"):
        assert count(product(attributes={"a": (value,)}), want, "oro", StubEncoder()).rule == 0


def test_no_unit_scores_nothing_unless_it_is_the_truth() -> None:
    want = wanted(reward("truth", title=()))
    for profile in PROFILES:
        assert count(product("other"), want, profile, StubEncoder()).rule == 0
        assert count(product("truth"), want, profile, StubEncoder()).rule == 1


def test_truth_counts_nothing_upstream_and_every_field_in_oro() -> None:
    want = wanted(reward("truth", price=(ranged("less than", None, 5),), service=("COD",)))
    truth = product("truth", service=("COD",))
    upstream = count(truth, want, "upstream", StubEncoder(0))
    assert counters(upstream, "upstream", truth=True) == ({}, {})
    oro = count(truth, want, "oro", StubEncoder(0))
    assert oro.rule == 1
    assert counters(oro, "oro", truth=True) == (
        {"title": 1, "price": 1, "service": 1, "sku & attrs": 0},
        {"title": 1, "service": 1, "sku & attrs": 0},
    )


texts = st.sampled_from(["a", "b", "c"])
products = st.builds(
    Product,
    product_id=st.sampled_from(["truth", "x"]),
    shop_id=texts,
    title=texts,
    price=st.floats(0, 100),
    service=st.lists(st.sampled_from(["COD", "official"]), unique=True).map(tuple),
    sku_options=st.dictionaries(texts, st.dictionaries(texts, texts), max_size=3),
    attributes=st.dictionaries(texts, st.lists(texts, max_size=2).map(tuple)),
)
rewards = st.builds(
    reward,
    title=st.lists(texts, max_size=2).map(tuple),
    sku_options=st.lists(st.dictionaries(texts, texts), max_size=2).map(tuple),
    attributes=st.lists(
        st.dictionaries(texts, st.lists(texts, max_size=2).map(tuple)), max_size=2
    ).map(tuple),
    service=st.lists(st.sampled_from(["COD", "official"]), max_size=2).map(tuple),
)


def plain_pairs(one: Product, want: dict[str, object]) -> int:
    """The definition word for word: the best of the empty SKU and each single one."""
    held = {(k, v) for k, values in one.attributes.items() for v in values}
    best = 0
    for sku in [{}, *one.sku_options.values()]:
        have = held | set(sku.items())
        best = max(best, sum(pair in have for pair in want["pairs"]))  # type: ignore[attr-defined]
    return best


@given(products, rewards, st.sampled_from(PROFILES), st.sampled_from([0.0, 0.6, 0.9]))
def test_rule_is_hits_over_units(one: Product, want: object, profile: Profile, sim: float) -> None:
    ready = wanted(want)  # type: ignore[arg-type]
    got = count(one, ready, profile, StubEncoder(sim))
    assert 0 <= got.rule <= 1
    assert all(0 <= hit <= total for hit, total in zip(got.hits, got.totals, strict=True))
    if one.product_id == "truth":
        assert got.rule == 1
    elif sum(got.totals):
        assert got.rule == pytest.approx(sum(got.hits) / sum(got.totals))
        assert got.hits[3] == plain_pairs(one, {"pairs": ready.pairs})
