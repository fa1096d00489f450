"""What the tools had shown so far: which product owns which datum, and what shape results had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from palio.judging.words import fold, lexicon, number, stem, token_set, tokens_of
from palio.records.trajectory import DispatchEvent
from palio.world.arguments import CATALOGUE_TOOLS

TEXT_KEYS = frozenset({"short_description", "description", "specification", "category"})
LIST_TOOLS = frozenset({"find_product", "find_products_in_same_shop"})
VIEW_TOOL = "view_product_information"
MAX_LISTS = 16
"""Result lists whose order is kept for "the second row", the last ones."""
# Links say nothing; "wanted" repeats what the caller of check_product_match asked for.
SKIPPED_KEYS = frozenset(
    {"product_id", "main_image_url", "product_url", "wanted", "match", "ok", "sku", "sku_id"}
)
MAX_DEPTH = 6
_decode = msgspec.json.Decoder().decode


class Seen:
    """Grows with each dispatch; only what thinking ever mentions is kept.

    Attributes:
        products: folded ids of products shown.
        shops: shop ids shown.
        owners: token -> ids of the products that it is a title word, value, price or shop of.
        values: tokens of brands, attributes, SKU options and services.
        titles: tokens of titles.
        numbers: prices and computed amounts.
        pairs: two neighbouring title words -> ids of the products with that title.
        heads: first word of a title, or brand -> ids.
        prices: product id -> price.
        counts: numbers of rows that a result had.
        lists: ids of the rows of each search in order, where thinking names positions at all.
    """

    def __init__(self, query: str, mentioned: set[str]) -> None:
        query_tokens = token_set(query)
        self._query = query_tokens | {stem(token) for token in query_tokens}
        self._mentioned = mentioned
        words = lexicon()
        self._generic = words.generic
        self._ordered = not mentioned.isdisjoint(words.positions)
        self.products: set[str] = set()
        self.shops: set[str] = set()
        self.owners: dict[str, set[str]] = {}
        self.values: set[str] = set()
        self.titles: set[str] = set()
        self.numbers: set[str] = set()
        self.pairs: dict[tuple[str, str], set[str]] = {}
        self.heads: dict[str, set[str]] = {}
        self.prices: dict[str, float] = {}
        self.counts: set[int] = set()
        self.lists: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.empty = self.trouble = self.any = False

    def new(self, token: str) -> bool:
        """Whether a token is neither the query's nor a generic word."""
        return (
            token not in self._query
            and token not in self._generic
            and stem(token) not in self._query
        )

    def generic(self, token: str) -> bool:
        """Whether a token is a word of any shopping talk."""
        return token in self._generic

    def asked(self, token: str) -> bool:
        """Whether a token stands in the query."""
        return token in self._query

    def add(self, event: DispatchEvent) -> None:
        """Take in one dispatch; tools that repeat their caller's words add nothing."""
        if event.tool not in CATALOGUE_TOOLS:
            return
        self.any = True
        if event.error or event.fault is not None:
            self.trouble = True
            return
        self.trouble = self.trouble or bool(event.warnings)
        try:
            value = _decode(event.result)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(value, list) and event.tool in LIST_TOOLS:
            self.counts.add(len(value))
            self.empty = self.empty or not value
            if self._ordered:
                self.lists = [*self.lists, _ids(value)][-MAX_LISTS:]
        elif isinstance(value, list) and event.tool == VIEW_TOOL:
            self.counts.add(len(value))
        # A space after each comma: "100,500" is two prices, not one of six digits.
        self._walk(value, token_set(event.arguments.replace(",", ", ")), 0)

    def _walk(self, value: Any, given: frozenset[str], depth: int) -> None:
        if depth > MAX_DEPTH:
            return
        if isinstance(value, list):
            for one in value:
                self._walk(one, given, depth + 1)
        elif isinstance(value, dict):
            if "product_id" in value:
                self._row(value)
                return
            for one in value.values():
                self._walk(one, given, depth + 1)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            amount = number(str(value))
            if amount not in given:
                self.numbers.add(amount)

    def _row(self, row: dict[str, Any]) -> None:
        product_id = fold(str(row["product_id"]))
        self.products.add(product_id)
        for key, value in row.items():
            if key in SKIPPED_KEYS:
                continue
            if key == "title" and isinstance(value, str):
                self._title(product_id, value)
            elif key == "price" and isinstance(value, int | float):
                self._price(product_id, value)
            elif key == "shop_id":
                shop = fold(str(value))
                if shop in self._mentioned:
                    self.shops.add(shop)
                    self._own(product_id, (shop,))
            elif key in TEXT_KEYS:
                if isinstance(value, str) and value:
                    self.texts.append(value)
            else:
                self._values(product_id, value, 0, brand=key == "brand")

    def _title(self, product_id: str, title: str) -> None:
        held = token_set(title)
        if held.isdisjoint(self._mentioned):
            return
        shared = self._mentioned & held
        self.titles |= shared
        self._own(product_id, shared)
        words = tokens_of(title)
        if words[0] in shared:
            self.heads.setdefault(words[0], set()).add(product_id)
        if len(shared) > 1:
            for at in range(len(words) - 1):
                if words[at] in shared and words[at + 1] in shared:
                    self.pairs.setdefault((words[at], words[at + 1]), set()).add(product_id)

    def _price(self, product_id: str, price: float) -> None:
        self.prices[product_id] = price
        amount = number(str(price))
        if amount in self._mentioned:
            self.numbers.add(amount)
            self._own(product_id, (amount,))

    def _values(self, product_id: str, value: Any, depth: int, *, brand: bool = False) -> None:
        if isinstance(value, str):
            self._text(product_id, value, brand=brand)
        elif isinstance(value, dict):
            if depth >= MAX_DEPTH:
                return
            for name, one in value.items():
                if name in SKIPPED_KEYS:
                    continue
                if isinstance(one, str):  # most values are: no call for each of them
                    self._text(product_id, one, brand=brand or name == "brand")
                else:
                    self._values(product_id, one, depth + 1, brand=brand or name == "brand")
        elif isinstance(value, list):
            if depth < MAX_DEPTH:
                for one in value:
                    self._values(product_id, one, depth + 1, brand=brand)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            amount = number(str(value))
            if amount in self._mentioned:
                self._own(product_id, (amount,))

    def _text(self, product_id: str, value: str, *, brand: bool) -> None:
        held = token_set(value)
        if held.isdisjoint(self._mentioned):
            return
        shared = self._mentioned & held
        self.values |= shared
        self._own(product_id, shared)
        if brand:
            for word in shared:
                self.heads.setdefault(word, set()).add(product_id)

    def _own(self, product_id: str, found: Iterable[str]) -> None:
        for token in found:
            owners = self.owners.get(token)
            if owners is None:
                self.owners[token] = {product_id}
            else:
                owners.add(product_id)


def _ids(rows: list[Any]) -> tuple[str, ...]:
    return tuple(fold(str(row.get("product_id", ""))) for row in rows if isinstance(row, dict))
