"""A changed datum is another one wherever its product shows, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.evaluate.counterfactual import Change, edited_tools
from palio.evaluate.counterfactual.edits import option_change, options_of, price_change
from palio.world.tools import Toolbox
from tests.counterfactual.small import setting

IDS = sorted(setting()[0].catalogue.products)


def rows(tools: Toolbox, name: str, **arguments: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tools.call(name, arguments).result)
    return found


@given(product_id=st.sampled_from(IDS), price=st.integers(1, 99_999))
def test_a_price_changes_in_every_search_and_nothing_else(product_id: str, price: int) -> None:
    world, _ = setting()
    product = world.catalogue.products[product_id]
    plain, edited = Toolbox(world), edited_tools(world, [price_change(product, price)])
    for arguments in ({"q": product.title}, {"q": product.title, "price": "0-500", "page": 2}):
        for before, after in zip(
            rows(plain, "find_product", **arguments),
            rows(edited, "find_product", **arguments),
            strict=True,
        ):
            own = before["product_id"] == product_id
            assert after == ({**before, "price": price} if own else before)


def test_an_option_changes_in_views_and_matches() -> None:
    world, _ = setting()
    for product in list(world.catalogue.products.values())[:40]:
        name, values = next(iter(options_of(product).items()))
        edited = edited_tools(world, [option_change(product, name, values[0], "zzz")])
        seen = edited.call("view_product_information", {"product_ids": product.product_id}).result
        assert "zzz" in seen
        wanted = {"product_id": product.product_id, "attributes": {name: values[0]}}
        if name in product.attributes and len(values) == 1:
            before = Toolbox(world).call("check_product_match", wanted).result
            assert edited.call("check_product_match", wanted).result != before


def test_a_renamed_product_is_found_and_viewed_under_its_new_id_alone() -> None:
    world, _ = setting()
    product = world.catalogue.products[IDS[0]]
    change = Change(
        product_id=product.product_id,
        field="product_id",
        before=product.product_id,
        after="909090",
    )
    edited = edited_tools(world, [change])
    text = edited.call("find_product", {"q": product.title}).result
    assert "909090" in text
    assert f'"{product.product_id}"' not in text
    view = rows(edited, "view_product_information", product_ids="909090")
    assert [row["product_id"] for row in view] == ["909090"]


@pytest.mark.parametrize("tool", ["find_product", "view_product_information"])
def test_the_original_world_stays_as_it_was(tool: str) -> None:
    world, _ = setting()
    product = world.catalogue.products[IDS[1]]
    asked = {"q": product.title, "product_ids": product.product_id}
    before = Toolbox(world).call(tool, asked).result
    edited_tools(world, [price_change(product, 1)]).call(tool, asked)
    assert Toolbox(world).call(tool, asked).result == before
