"""Every tool answers every call with an observation; good calls get exactly the agreed text."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from palio.records import ConfigError, canonical_json
from palio.world import (
    CATALOGUE_TOOLS,
    COMPACT,
    FOUR_TOOLS,
    FULL,
    SEVEN_TOOLS,
    Toolbox,
    ToolReply,
    World,
    canonical_arguments,
    tool_message,
    tool_schemas,
)
from palio.world.arguments import ALL_TOOLS, known_arguments
from tests.world.shelf import shelf

WARN = Toolbox(World.build(shelf(), FULL))
COMPAT = Toolbox(World.build(shelf(), msgspec.structs.replace(FULL, filters_mode="compat")))
SMALL = Toolbox(World.build(shelf(), COMPACT))


def rows(reply: ToolReply) -> list[str]:
    return [row["product_id"] for row in json.loads(reply.result)]


class TestText:
    """Golden texts: models are trained on these bytes."""

    def test_full_rows(self) -> None:
        assert WARN.call("find_product", {"q": "hat", "shop_id": "s2"}).result == (
            '[{"product_id":"30","shop_id":"s2","title":"wool hat wool","price":15.5,'
            '"service":[],"sold_count":9}]'
        )
        assert WARN.call("find_product", {"q": "scarf", "service": "COD,official"}).result == (
            '[{"product_id":"22","shop_id":"s1","title":"wool scarf","price":10.0,'
            '"service":["COD","official"],"sold_count":7}]'
        )
        assert WARN.call("view_product_information", {"product_ids": "5"}).result == (
            '[{"product_id":"5","short_description":"","description":"","sku_options":{},'
            '"attributes":{"material":["steel","glass"]}}]'
        )

    def test_compact_rows(self) -> None:
        assert SMALL.call("find_product", {"q": "hat"}).result == (
            '[{"product_id":"3","shop_id":"s1","title":"wool wool hat","price":15},'
            '{"product_id":"30","shop_id":"s2","title":"wool hat wool","price":15.5}]'
        )
        assert SMALL.call("view_product_information", {"product_ids": "20,5,4"}).result == (
            '[{"product_id":"20"},{"product_id":"5","attributes":{"material":["steel","glass"]}},'
            '{"product_id":"4","sku_options":{"1":{"color":"red","size":"s"},'
            '"2":{"color":"blue","size":"xl"}}}]'
        )

    def test_vouchers(self) -> None:
        asked = {
            "product_prices": "100,50",
            "voucher_type": "percentage",
            "discount_value": 34,
            "threshold": 150,
            "budget": 110,
            "cap": 40,
        }
        assert WARN.call("calculate_voucher", asked).result == (
            '{"prices":[100.0,50.0],"total_before":150.0,"discount_amount":40.0,'
            '"total_after":110.0,"within_budget":true,"voucher_applied":true,"budget":110.0}'
        )
        assert SMALL.call("calculate_voucher", {**asked, "cap": 0, "budget": 98.5}).result == (
            '{"total_before":150,"total_after":99,"within_budget":false}'
        )

    def test_endings(self) -> None:
        assert WARN.call("recommend_product", {"product_ids": ["20", 4]}).result == (
            '{"recommended":["20","4"]}'
        )
        for arguments in ({}, "", None, {"status": "success"}):
            assert WARN.call("terminate", arguments).result == '{"status":"success"}'
        assert WARN.call("terminate", {"status": "failure"}).result == '{"status":"failure"}'

    def test_message_puts_warnings_below_the_result(self) -> None:
        reply = ToolReply(result="[]", warnings=("one", "two"))
        assert tool_message(reply) == "[]\nWarning: one\nWarning: two"
        assert tool_message(ToolReply(result="[]")) == "[]"


class TestFilters:
    @pytest.mark.parametrize(
        ("argument", "value", "word"),
        [
            ("price", "375:99999", "low-high"),
            ("price", "above:10", "low-high"),
            ("price", "104", "low-high"),
            ("price", 104, "low-high"),
            ("price", "nan-5", "low-high"),
            ("price", "1-2-3", "low-high"),
            ("price", [1, 2], "low-high"),
            ("service", "LazMall", "official"),
            ("service", "freeshipping", "freeShipping"),
            ("sort", "best", "priceasc"),
            ("colour", "red", "shop_id"),
        ],
    )
    def test_unreadable_filters_are_ignored_and_only_warn_mode_says_so(
        self, argument: str, value: Any, word: str
    ) -> None:
        asked = {"q": "wool", argument: value}
        plain = WARN.call("find_product", {"q": "wool"})
        warned, silent = WARN.call("find_product", asked), COMPAT.call("find_product", asked)
        assert warned.result == silent.result == plain.result
        assert len(warned.warnings) == 1
        assert word in warned.warnings[0]
        assert silent.warnings == plain.warnings == ()

    def test_prices_are_inclusive_and_sides_may_be_open(self) -> None:
        for price, found in {
            "15-20": ["3", "30", "20"],
            "-10": ["22"],
            " 15.5 - ": ["30", "20", "21"],
            "-": ["3", "30", "20", "21", "22"],
            "20-10": [],
        }.items():
            assert rows(WARN.call("find_product", {"q": "wool", "price": price})) == found, price

    def test_a_range_upside_down_finds_nothing_and_says_why(self) -> None:
        reply = WARN.call("find_product", {"q": "wool", "price": "20-10"})
        assert reply.result == "[]"
        assert "above its high side" in reply.warnings[0]

    @pytest.mark.parametrize("page", [0, 6, -1, 1.5, "two", True, [1], 10**30, "1e3"])
    def test_pages_that_do_not_exist_are_empty(self, page: Any) -> None:
        reply = WARN.call("find_product", {"q": "wool", "page": page})
        assert reply.result == "[]"
        assert "pages are 1 to 5" in reply.warnings[0]

    def test_known_services_still_count_beside_unknown_ones(self) -> None:
        reply = WARN.call("find_product", {"q": "wool", "service": ["COD", "fast"]})
        assert rows(reply) == ["20", "22"]

    def test_pages_of_the_compact_world_hold_five(self) -> None:
        assert len(rows(SMALL.call("find_product", {"q": "wool hat"}))) == 5


class TestSameShop:
    def test_others_of_the_shop_by_id_or_by_words(self) -> None:
        same = "find_products_in_same_shop"
        assert rows(WARN.call(same, {"product_id": "3"})) == ["20", "22", "5"]
        assert rows(WARN.call(same, {"product_id": "5", "q": "hat"})) == ["3"]
        assert rows(WARN.call(same, {"product_ids": 3, "price": "-15"})) == ["22", "5"]
        assert rows(WARN.call(same, {"product_id": "3", "page": 2})) == []
        assert "no product" in WARN.call(same, {"product_id": "nope"}).error


class TestArguments:
    @pytest.mark.parametrize(
        ("tool", "given", "canonical"),
        [
            ("find_product", {"query": " mug ", "page": "2"}, {"q": "mug", "page": 2}),
            ("find_product", {"q": "", "query": "mug"}, {"q": "mug"}),
            ("find_product", {"query": "x", "q": "m", "page": 1, "sort": "default"}, {"q": "m"}),
            ("find_product", '{"parameters": {"q": "m", "page": "3"}}', {"q": "m", "page": 3}),
            ("find_product", {"name": "x", "arguments": {"q": "mug"}}, {"q": "mug"}),
            ("find_product", '"{\\"q\\": \\"mug\\"}"', {"q": "mug"}),
            ("find_product", {"arguments": '{"q": "mug", "service": "default"}'}, {"q": "mug"}),
            ("find_product", {"q": "mug", "shop_id": 12}, {"q": "mug", "shop_id": "12"}),
            ("calculate_voucher", {"cap": 0, "budget": 3}, {"budget": 3}),
            ("find_product", {"service": ["COD", " official"]}, {"service": "COD,official"}),
            ("find_product", {"q": "mug", "price": None, "page": 2.0}, {"q": "mug", "page": 2}),
            ("view_product_information", {"product_id": 12}, {"product_ids": "12"}),
            ("view_product_information", {"product_ids": [" 1", 2, ""]}, {"product_ids": "1,2"}),
            ("view_product_information", {"product_ids": '["1", "2"]'}, {"product_ids": "1,2"}),
            ("recommend_product", {"product_ids": "1, 2,,"}, {"product_ids": "1,2"}),
            ("terminate", {"status": "success"}, {}),
            ("calculate_voucher", {"product_prices": [9, 5.5]}, {"product_prices": "9,5.5"}),
            ("calculate_voucher", {"budget": "99.50"}, {"budget": 99.5}),
            ("check_product_match", {"product_ids": "7", "sku_options": [{"a": "x"}, {"b": "y"}]},
             {"product_id": "7", "sku_options": {"a": "x", "b": "y"}}),
            ("find_product", "[1, 2]", {"unparsed": "[1, 2]"}),
            ("find_product", "{broken", {"unparsed": "{broken"}),
            ("no_such_tool", {"b": math.nan, "a": "\ud800"}, {"b": "nan", "a": "?"}),
        ],
    )  # fmt: skip
    def test_canonical_form(self, tool: str, given: Any, canonical: dict[str, Any]) -> None:
        assert canonical_arguments(tool, given) == canonical

    def test_canonical_arguments_are_canonical_already(self) -> None:
        given = {"query": ["a"], "page": "3", "price": 5, "extra": {"deep": [1]}}
        once = canonical_arguments("find_product", given)
        assert canonical_arguments("find_product", once) == once


NASTY = ["\ud800", "\0", "1e999", "9" * 5000, "[" * 2000, "20,21", "-", "{}", 10**400]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
KEYS = st.text(max_size=8) | st.sampled_from(["q", "product_ids", "arguments", "price"])
JSON = st.recursive(
    PLAIN | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Any]:
    tool = draw(st.sampled_from([*ALL_TOOLS, "", "rm -rf"]))
    names = [*known_arguments(tool), "query", "product_id", "arguments", "zzz"]
    shape = draw(st.sampled_from(["fields", "any", "text"]))
    if shape == "fields":
        return tool, draw(st.dictionaries(st.sampled_from(names), JSON, max_size=6))
    if shape == "text":
        return tool, draw(st.text(max_size=40) | st.sampled_from(["[" * 9999, "null", '"x"', "1"]))
    return tool, draw(JSON)


class TestAnything:
    @given(calls())
    @settings(max_examples=500, deadline=None)
    def test_no_call_raises_and_every_result_is_strict_json(self, call: tuple[str, Any]) -> None:
        tool, arguments = call
        canonical = canonical_arguments(tool, arguments)
        assert json.loads(canonical_json(canonical)) == canonical
        for toolbox in (WARN, SMALL, COMPAT):
            reply = toolbox.call(tool, arguments)
            value = msgspec.json.decode(reply.result)
            assert bool(reply.error) == (isinstance(value, dict) and "error" in value)
            tool_message(reply).encode("utf-8")
            assert sum(map(len, reply.warnings)) < 5000
        assert reply.warnings == ()

    def test_deep_and_huge_arguments(self) -> None:
        deep: Any = "q"
        for _ in range(5000):
            deep = [deep]
        assert "[]" in WARN.call("find_product", {"q": deep}).result
        huge = WARN.call("view_product_information", {"product_ids": "20," * 100_000})
        assert len(rows(huge)) == 100
        assert WARN.call("find_product", {"q": "wool " * 200_000}).result.startswith("[{")
        assert WARN.call(None, {}).error  # type: ignore[arg-type]

    def test_missing_products_are_skipped_and_named(self) -> None:
        reply = WARN.call("view_product_information", {"product_ids": "nope, 20 ,\ud800"})
        assert rows(reply) == ["20"]
        assert reply.warnings == ("there is no product 'nope'", "there is no product '?'")

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"voucher_type": "platform"}, "voucher_type"),
            ({"product_prices": "ten"}, "product_prices"),
            ({"product_prices": "nan"}, "product_prices"),
            ({"product_prices": ""}, "product_prices"),
            ({"discount_value": "a lot"}, "discount_value"),
            ({"discount_value": 101}, "100 %"),
            ({"threshold": -1}, "threshold"),
            ({"budget": [1]}, "budget"),
        ],
    )
    def test_voucher_mistakes_are_named(self, changes: dict[str, Any], word: str) -> None:
        asked = {"product_prices": "100", "voucher_type": "percentage", "discount_value": 10}
        assert word in WARN.call("calculate_voucher", {**asked, **changes}).error


class TestSchemas:
    @pytest.mark.parametrize("name", ALL_TOOLS)
    def test_schemas_are_valid_and_name_what_the_tools_read(self, name: str) -> None:
        (schema,) = tool_schemas((name,))
        assert schema["type"] == "function"
        function = schema["function"]
        assert set(function["parameters"]["properties"]) == set(known_arguments(name))
        Draft202012Validator.check_schema(function["parameters"])
        assert function["description"].endswith(".")

    def test_sets(self) -> None:
        assert [tool["function"]["name"] for tool in tool_schemas(FOUR_TOOLS)] == list(FOUR_TOOLS)
        assert set(CATALOGUE_TOOLS) < set(SEVEN_TOOLS)
        with pytest.raises(ConfigError):
            tool_schemas(("no_such_tool",))

    def test_a_caller_cannot_change_the_schemas(self) -> None:
        tool_schemas()[0]["function"]["name"] = "changed"
        assert tool_schemas()[0]["function"]["name"] == "find_product"


def test_worlds_are_known_by_their_digest() -> None:
    again = World.build(shelf(), FULL)
    assert WARN.world.digest == again.digest
    assert len({WARN.world.digest, COMPAT.world.digest, SMALL.world.digest}) == 3
