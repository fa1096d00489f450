"""What follows from a prefix, and that knowing more never makes less follow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.corpus.derivable import Prefix, roots
from palio.records import Trajectory
from tests.salvage.making import runs

REQUEST = (
    "Looking for a waterproof LazMall speaker, 500 ml bottle and batteries, "
    "price under 1,299 pesos, around 40 cm"
)
VOUCHER = (
    "i am looking for a yellow chair by vaigro. my budget is 139 and i have a voucher: "
    "a 30 percent discount capped at 58 when the total exceeds 76."
)
ROWS = json.dumps(
    [
        {"product_id": "4821", "shop_id": "77", "title": "vertex speaker", "price": 349},
        {"product_id": "6093", "shop_id": "78", "title": "vertex lamp", "price": 25},
    ]
)


def prefix(request: str = REQUEST, *results: tuple[str, dict[str, Any], str]) -> Prefix:
    made = Prefix(request)
    for tool, arguments, result in results:
        made.add(tool, arguments, result)
    return made


SEEN = ("find_product", {"q": "speaker"}, ROWS)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find_product", {"q": "water proof speakers for 500ml bottles, battery"}),
        ("find_product", {"q": "speaker", "price": "0-1299"}),
        ("find_product", {"q": "speaker", "price": "-1298.99"}),
        ("find_product", {"q": "speaker", "price": "36-44"}),
        ("find_product", {"q": "speaker", "service": "official"}),
        ("find_product", {"q": "speaker", "sort": "priceasc"}),
        ("terminate", {"status": "success"}),
    ],
)
def test_follows_from_the_request(tool: str, arguments: dict[str, Any]) -> None:
    assert prefix().missing(tool, arguments) == ()


@pytest.mark.parametrize(
    ("tool", "arguments", "missing"),
    [
        ("find_product", {"q": "speaker vertex"}, ("q:vertex",)),
        ("find_product", {"q": "speaker", "price": "349-349"}, ("price:349",)),
        ("find_product", {"q": "speaker", "service": "COD"}, ("service:COD",)),
        ("find_product", {"q": "speaker", "sort": "order"}, ("sort:order",)),
        ("find_product", {"q": "speaker", "shop_id": "77"}, ("shop_id:77",)),
        ("find_product", {"q": "speaker", "page": 2}, ("page:2",)),
        ("view_product_information", {"product_ids": ["4821"]}, ("product_ids:4821",)),
        ("recommend_product", {"product_ids": "6,7"}, ("product_ids:6", "product_ids:7")),
        ("calculate_voucher", {"product_prices": "349"}, ("product_prices:349.0",)),
        ("check_product_match", {"product_id": "4821", "attributes": {"hue": "red"}},
         ("product_id:4821", "attributes:hue", "attributes:red")),
    ],
)  # fmt: skip
def test_does_not_follow_from_the_request(
    tool: str, arguments: dict[str, Any], missing: tuple[str, ...]
) -> None:
    assert prefix().missing(tool, arguments) == missing


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find_product", {"q": "speaker vertex"}),
        ("find_product", {"q": "speaker", "price": "349-"}),
        ("find_product", {"q": "lamp", "shop_id": "77"}),
        ("find_product", {"q": "speaker", "page": 2}),
        ("view_product_information", {"product_ids": "4821,6093"}),
        ("find_products_in_same_shop", {"product_id": "4821", "q": "lamp"}),
        ("calculate_voucher", {"product_prices": "349,25"}),
    ],
)
def test_follows_once_a_result_has_told_it(tool: str, arguments: dict[str, Any]) -> None:
    assert prefix(REQUEST, SEEN).missing(tool, arguments) == ()


@pytest.mark.parametrize(
    "arguments",
    [
        {"product_prices": "349,25", "voucher_type": "percentage", "discount_value": 30,
         "threshold": 76, "budget": 139, "cap": 58},
        {"product_prices": "349", "voucher_type": "percentage", "discount_value": 0.3,
         "threshold": 76},
    ],
)  # fmt: skip
def test_voucher_arithmetic(arguments: dict[str, Any]) -> None:
    known = prefix(VOUCHER, SEEN)
    assert known.missing("calculate_voucher", arguments) == ()
    assert known.missing("calculate_voucher", {**arguments, "threshold": 77}) == ("threshold:77",)


def test_price_ranges_of_a_budget() -> None:
    known = prefix(VOUCHER, SEEN)
    # before the voucher: 139 + 58, 139 / 0.7; what is left after the lamp: 139 - 25
    for price in ("0-197", "0-198", "0-199", "-114", "-139"):
        assert known.missing("find_product", {"q": "chair", "price": price}) == ()
    assert prefix(VOUCHER).missing("find_product", {"q": "chair", "price": "-114"}) == (
        "price:114",
    )


def test_a_result_does_not_tell_what_its_own_call_named() -> None:
    viewed = ("view_product_information", {"product_ids": "9999"}, '[{"product_id":"9999"}]')
    assert prefix(REQUEST, viewed).missing_ids(["9999"]) == ("9999",)
    found = ("find_product", {"q": "speaker"}, '[{"product_id":"9999"}]')
    assert prefix(REQUEST, viewed, found).missing_ids(["9999"]) == ()


def test_echoes_and_answers_tell_nothing() -> None:
    error = ("find_product", {"q": "x"}, '{"error":"there is no secretword"}')
    told = ("recommend_product", {"product_ids": "1"}, '{"recommended":["secretword"]}')
    wanted = ("check_product_match", {"product_id": "1"}, '{"checks":[{"wanted":"secretword"}]}')
    known = prefix(REQUEST, error, told, wanted)
    assert known.missing_words("secretword") == ("secretword",)


def test_words_share_roots_through_endings() -> None:
    assert roots("shoes") & roots("shoe")
    assert roots("batteries") & roots("battery")
    assert not roots("as") & roots("a")


CALLS = tuple(
    (event.tool, event.arguments, event.result)
    for agent in ("careful", "narrator")
    for trajectory in runs(agent)
    for event in trajectory.dispatches
)


@given(
    st.sampled_from([t.query for t in runs("careful")]),
    st.lists(st.sampled_from(CALLS), max_size=5),
    st.lists(st.sampled_from(CALLS), max_size=3),
    st.lists(st.sampled_from(CALLS), min_size=1, max_size=4),
)
def test_derivability_is_monotone(
    request: str, first: list[Any], more: list[Any], asked: list[Any]
) -> None:
    shorter, longer = prefix(request, *first), prefix(request, *first, *more)
    for tool, arguments, _ in asked:
        assert set(longer.missing(tool, arguments)) <= set(shorter.missing(tool, arguments))


def first_missing(trajectory: Trajectory) -> tuple[str, ...]:
    known = Prefix(trajectory.query)
    for event in trajectory.dispatches:
        if missing := known.missing(event.tool, event.arguments):
            return missing
        known.add(event.tool, event.arguments, event.result)
    return ()


@pytest.mark.parametrize("agent", ["careful", "terse", "sloppy", "hasty", "narrator", "classifier"])
def test_every_call_of_an_honest_agent_follows(agent: str) -> None:
    for trajectory in runs(agent):
        assert first_missing(trajectory) == (), trajectory.query
