"""A match is one single SKU plus the attributes, never two SKUs patched together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from palio.world import Catalogue, Toolbox, World
from palio.world.matching import best_sku
from tests.world.shelf import product

SHIRT = product(
    "1",
    "shirt",
    price=50.0,
    service=("COD",),
    sku_options={
        "1": {"color": "red", "size": "m"},
        "2": {"color": "blue", "size": "l"},
        "3": {"color": "blue", "size": "m"},
    },
    attributes={"material": ("cotton", "wool"), "Fit": ("Slim",)},
)
TOOLS = Toolbox(World.build(Catalogue.from_products("one", [SHIRT])))


def check(**wanted: Any) -> dict[str, Any]:
    reply = TOOLS.call("check_product_match", {"product_id": "1", **wanted})
    found: dict[str, Any] = json.loads(reply.result)
    return found


def test_options_must_stand_in_one_sku() -> None:
    assert check(sku_options={"color": "blue", "size": "l"})["sku"] == "2"
    assert check(sku_options={"color": "blue", "size": "l"})["match"] is True
    wrong = check(sku_options={"color": "red", "size": "l"})
    assert (wrong["match"], wrong["sku"]) == (False, "1")
    assert wrong["checks"] == [
        {"wanted": "color: red", "found": "red", "ok": True},
        {"wanted": "size: l", "found": "m", "ok": False},
    ]


def test_pairs_may_stand_in_options_or_attributes() -> None:
    assert check(sku_options={"material": "wool"}) == {
        "product_id": "1",
        "match": True,
        "sku": None,
        "checks": [{"wanted": "material: wool", "found": "cotton, wool", "ok": True}],
    }
    assert check(attributes={"color": "blue", "material": ["wool", "cotton"]})["sku"] == "2"
    assert check(attributes={"color": "blue", "material": "silk"})["match"] is False


def test_case_and_space_do_not_matter() -> None:
    assert check(attributes={" fit": "SLIM "}, sku_options={"Color": "Red"})["match"] is True


def test_price_service_and_shop() -> None:
    for wanted, match in (
        ({"price": "50-"}, True),
        ({"price": "-49.99"}, False),
        ({"service": "COD"}, True),
        ({"service": "COD,official"}, False),
        ({"shop_id": "s1"}, True),
        ({"shop_id": "s2"}, False),
    ):
        assert check(**wanted)["match"] is match, wanted
    assert check(price="-49.5")["checks"] == [{"wanted": "price -49.5", "found": 50.0, "ok": False}]


@pytest.mark.parametrize(
    "wanted",
    [{}, {"price": "cheap"}, {"sku_options": "red"}, {"sku_options": {"color": None}}],
)
def test_nothing_to_check_is_an_error_not_a_match(wanted: dict[str, Any]) -> None:
    assert "error" in check(**wanted)


def test_a_product_without_skus_has_none_to_choose() -> None:
    assert best_sku(product("2"), (("color", "red"),)) == (None, frozenset())
