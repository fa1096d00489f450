"""The tools of the shopping world; whatever an agent sends, it gets an observation back."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import resources
from typing import Any, cast

import msgspec

from palio.records import ConfigError, InputError, Product, Record, Tool
from palio.world.arguments import (
    ALL_TOOLS,
    CATALOGUE_TOOLS,
    FOUR_TOOLS,
    SEVEN_TOOLS,
    UNPARSED,
    canonical_arguments,
    known_arguments,
)
from palio.world.execution import MAX_CODE, Executor
from palio.world.filters import SearchFilters, read_filters, read_price, read_services, shown
from palio.world.matching import WantedMatch, check_match
from palio.world.rendering import detail_rows, json_text, search_rows, voucher_row
from palio.world.voucher import DiscountType, apply_discount
from palio.world.web import MAX_RESULTS
from palio.world.world import World

__all__ = [
    "ALL_TOOLS",
    "CATALOGUE_TOOLS",
    "FOUR_TOOLS",
    "SEVEN_TOOLS",
    "ToolReply",
    "Toolbox",
    "canonical_arguments",
    "tool_message",
    "tool_schemas",
]

MAX_IDS = 100
"""Product ids of one call that are looked at: no task wants more than four."""


class ToolReply(Record, frozen=True):
    """What a tool answers.

    Attributes:
        result: compact JSON text.
        warnings: what was ignored or looks wrong, one sentence each; empty in compat mode.
        error: why the call could not be carried out, "" when it was; `result` says so too.
    """

    result: str
    warnings: tuple[str, ...] = ()
    error: str = ""


class _RefusedError(Exception):
    """A call that cannot be carried out; its text is the observation."""


class Toolbox:
    """The tools over one world; holds no state of an episode and never raises on agent input.

    Args:
        world: where they act.
        executor: where `python_execute` runs its code; None: it answers that it cannot.
        withheld: tools that this run does not have; a call of one is answered as that of a tool
            which there is not.
    """

    def __init__(
        self, world: World, executor: Executor | None = None, withheld: Collection[str] = ()
    ) -> None:
        self.world = world
        self._executor = executor
        self._tools: dict[str, Callable[[dict[str, Any], list[str]], str]] = {
            "find_product": self._find_product,
            "view_product_information": self._view,
            "recommend_product": self._recommend,
            "terminate": self._terminate,
            "calculate_voucher": self._calculate_voucher,
            "check_product_match": self._check_match,
            "find_products_in_same_shop": self._same_shop,
            "web_search": self._web_search,
            "python_execute": self._execute,
        }
        for name in withheld:
            self._tools.pop(name, None)
        here = {"web_search": world.web is not None, "python_execute": executor is not None}
        here |= dict.fromkeys(withheld, False)
        self._named = tuple(name for name in ALL_TOOLS if here.get(name, True))

    def call(self, name: str, arguments: Mapping[str, Any] | str | None) -> ToolReply:
        """Carry out one call.

        Args:
            name: one of `ALL_TOOLS`; anything else is answered with an error.
            arguments: an object or JSON text; see `canonical_arguments` for what is understood.

        Raises:
            ExecutionUnavailableError: the host has no sandbox left for code.
        """
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            return _refusal(f"there is no tool {shown(name)}; tools: {', '.join(self._named)}")
        given = canonical_arguments(name, arguments)
        if UNPARSED in given:
            return _refusal(f"the arguments of {name} are not a JSON object")
        known = known_arguments(name)
        warnings = [
            f"argument {shown(extra)} is unknown and was ignored; {name} has {', '.join(known)}"
            for extra in given
            if extra not in known
        ][:5]
        try:
            result = tool(given, warnings)
        except _RefusedError as refusal:
            return _refusal(f"{name}: {refusal}")
        spoken = tuple(warnings) if self.world.config.filters_mode == "warn" else ()
        return ToolReply(result=result, warnings=spoken)

    def _find_product(self, given: dict[str, Any], warnings: list[str]) -> str:
        filters = read_filters(given, self.world.index.spec)
        warnings += filters.ignored
        shop_id = given.get("shop_id", "")
        if not isinstance(shop_id, str):
            warnings.append(f"shop_id {shown(shop_id)} is not a text and was ignored")
            shop_id = ""
        if shop_id and shop_id not in self.world.catalogue.by_shop:
            warnings.append(f"there is no shop {shown(shop_id)}")
        return self._rows(self._hits(given, filters, shop_id, warnings))

    def _hits(
        self,
        given: dict[str, Any],
        filters: SearchFilters,
        shop_id: str,
        warnings: list[str],
    ) -> list[str]:
        query = given.get("q", "")
        if not isinstance(query, str) or not query:
            warnings.append("q is empty: a search needs words")
            return []
        if not filters.page:
            return []
        return self.world.index.page(
            query,
            filters.page,
            shop_id=shop_id,
            price=filters.price,
            services=filters.services,
            sort=filters.sort,
        )

    def _view(self, given: dict[str, Any], warnings: list[str]) -> str:
        found = self._products(given, warnings)
        return detail_rows(found, self.world.config.rows)

    def _recommend(self, given: dict[str, Any], warnings: list[str]) -> str:
        ids = _ids(given)
        warnings += self._unknown(ids)
        return json_text({"recommended": ids})

    def _terminate(self, given: dict[str, Any], warnings: list[str]) -> str:
        status = given.get("status", "success")
        if status not in ("success", "failure"):
            warnings.append(f"status {shown(status)} is unknown; it counts as success")
            status = "success"
        return json_text({"status": status})

    def _calculate_voucher(self, given: dict[str, Any], warnings: list[str]) -> str:
        prices = _prices(given.get("product_prices"))
        kind = given.get("voucher_type")
        if kind not in ("fixed", "percentage"):
            raise _RefusedError(
                f"voucher_type is {shown(kind)}; it says how the discount is counted, fixed or "
                "percentage (not where the voucher applies)"
            )
        value = _amount(given, "discount_value")
        threshold = _amount(given, "threshold", 0.0)
        cap = _amount(given, "cap", 0.0)
        budget = _amount(given, "budget") if "budget" in given else None
        if kind == "percentage" and 0 < value < 1:
            warnings.append(f"discount_value {value:g} means {value:g} %; write 34 for 34 %")
        try:
            total = apply_discount(
                prices, cast("DiscountType", kind), value, threshold=threshold, cap=cap
            )
        except InputError as error:
            raise _RefusedError(error.what) from error
        return voucher_row(prices, total, budget, self.world.config.rows)

    def _check_match(self, given: dict[str, Any], warnings: list[str]) -> str:
        product = self._one_product(given)
        shop_id = given.get("shop_id", "")
        wanted = WantedMatch(
            pairs=_pairs(given, "sku_options") + _pairs(given, "attributes"),
            price=read_price(given.get("price"), warnings),
            services=read_services(given.get("service"), warnings),
            shop_id=shop_id if isinstance(shop_id, str) else "",
        )
        if wanted == WantedMatch():
            raise _RefusedError(
                "nothing to check; give sku_options, attributes, price, service or shop_id"
            )
        return json_text(check_match(product, wanted))

    def _same_shop(self, given: dict[str, Any], warnings: list[str]) -> str:
        product = self._one_product(given)
        filters = read_filters(given, self.world.index.spec)
        warnings += filters.ignored
        query = given.get("q", "")
        if not isinstance(query, str):
            warnings.append(f"q {shown(query)} is not a text and was ignored")
            query = ""
        if not filters.page:
            return self._rows([])
        ids = self.world.index.in_shop(
            product.shop_id,
            query,
            price=filters.price,
            services=filters.services,
            sort=filters.sort,
        )
        others = [product_id for product_id in ids if product_id != product.product_id]
        size = self.world.index.spec.page_size
        return self._rows(others[(filters.page - 1) * size : filters.page * size])

    def _web_search(self, given: dict[str, Any], warnings: list[str]) -> str:
        if self.world.web is None:
            raise _RefusedError("this world has no documents to search")
        query = given.get("q", "")
        if not isinstance(query, str) or not query:
            raise _RefusedError("q is empty: a search needs words")
        most = given.get("max_results", 5)
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MAX_RESULTS:
            warnings.append(f"max_results {shown(most)} is not from 1 to {MAX_RESULTS}; 5 is used")
            most = 5
        return json_text(msgspec.to_builtins(list(self.world.web.search(query, most))))

    def _execute(self, given: dict[str, Any], warnings: list[str]) -> str:
        code = given.get("code", "")
        if self._executor is None:
            raise _RefusedError("this run offers no sandbox to run code in")
        if not isinstance(code, str) or not code.strip():
            raise _RefusedError('code must be Python source text, for example "print(2 * 3)"')
        if len(code) > MAX_CODE:
            raise _RefusedError(f"code has {len(code)} characters, at most {MAX_CODE} are run")
        made = self._executor.execute(code)
        if made.truncated:
            warnings.append("the output was cut; print less")
        return json_text(msgspec.to_builtins(made))

    def _rows(self, product_ids: list[str]) -> str:
        products = self.world.catalogue.products
        found = [products[product_id] for product_id in product_ids]
        return search_rows(found, self.world.config.rows)

    def _products(self, given: dict[str, Any], warnings: list[str]) -> list[Product]:
        ids = _ids(given)
        warnings += self._unknown(ids)
        products = self.world.catalogue.products
        return [products[product_id] for product_id in ids if product_id in products]

    def _one_product(self, given: dict[str, Any]) -> Product:
        product_id = given.get("product_id")
        product = (
            self.world.catalogue.products.get(product_id) if isinstance(product_id, str) else None
        )
        if product is None:
            raise _RefusedError(f"there is no product {shown(product_id)}")
        return product

    def _unknown(self, ids: list[str]) -> list[str]:
        missing = [each for each in ids if each not in self.world.catalogue.products]
        return [f"there is no product {shown(each)}" for each in missing[:5]]


def tool_schemas(names: tuple[str, ...] = SEVEN_TOOLS) -> tuple[Tool, ...]:
    """The tools as a model is told about them, nested OpenAI form, in the order of `names`.

    Raises:
        ConfigError: a name is none of `ALL_TOOLS`.
    """
    known = _schemas()
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"there is no tool {missing[0]!r}", remedy=f"choose from {', '.join(ALL_TOOLS)}"
        )
    return tuple(copy.deepcopy(known[name]) for name in names)


def tool_message(reply: ToolReply) -> str:
    """What the model reads: the result, then one line a warning."""
    return "\n".join([reply.result, *(f"Warning: {warning}" for warning in reply.warnings)])


@cache
def _schemas() -> dict[str, Tool]:
    text = resources.files("palio.world").joinpath("tools.json").read_bytes()
    tools: list[Tool] = msgspec.json.decode(text)
    return {tool["function"]["name"]: tool for tool in tools}


def _refusal(error: str) -> ToolReply:
    return ToolReply(result=json_text({"error": error}), error=error)


def _ids(given: dict[str, Any]) -> list[str]:
    """Ids of a canonical comma text, in order, at most `MAX_IDS`."""
    ids = given.get("product_ids", "")
    if not isinstance(ids, str) or not ids:
        raise _RefusedError('product_ids must be a comma-separated text, for example "123,456"')
    return ids.split(",")[:MAX_IDS]


def _prices(given: Any) -> list[float]:
    try:
        prices = [float(part) for part in given.split(",")] if isinstance(given, str) else []
    except ValueError:
        prices = []
    if not prices or not all(math.isfinite(price) and price >= 0 for price in prices):
        raise _RefusedError(
            f'product_prices is {shown(given)}; write prices with commas, for example "100,50"'
        )
    return prices


def _amount(given: dict[str, Any], name: str, default: float | None = None) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RefusedError(f"{name} is {shown(value)}, not a number")
    return float(value)


def _pairs(given: dict[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    """Wanted (name, value) pairs of an object whose values are texts, numbers or lists of them."""
    wanted = given.get(name, {})
    if not isinstance(wanted, dict):
        raise _RefusedError(f'{name} must be an object, for example {{"color": "red"}}')
    pairs = []
    for key, values in wanted.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise _RefusedError(f"{name}.{shown(key)} is {shown(value)}, not a text")
            pairs.append((key, str(value)))
    return tuple(dict.fromkeys(pairs))
