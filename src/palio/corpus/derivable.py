"""Whether a call could have been made from what stood before it: the request and earlier results.

A trace that was selected for success can hide knowledge that nobody had: an id from a table, a
word of a title that no result had shown. So every token of every argument must follow from the
prefix. All rules only ask whether something *is* in it, so a longer prefix never makes less
derivable:

- words: folded tokens of the request, of palio's reading of it (catalogue spelling of spoken
  forms, attribute names), and of earlier results, keys included; equal up to a plural, -ed or -ing
  ending; joined ("waterproof" of "water proof") or taken apart ("500ml" of "500 ml"); and
  closed-class words.
- product and shop ids: told by an earlier result under `product_id` or `shop_id`, or in the
  request. What a call named itself is not told by its own result.
- price ranges: 0, a number of the request or of a result; one more or less (a strict bound); a
  rough number's slack; an equal share of a budget; a budget less prices seen; a budget before its
  discount.
- services: as the request words them. Sort orders: as it words them, or a bound or a voucher for
  the cheapest first. Page n of a search: page n - 1 of it was seen and had rows.
- voucher arithmetic: numbers of the request (34 and 0.34 are one rate), prices seen.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import resources
from itertools import combinations
from typing import Any

import msgspec

from palio.agents.reading import Wanted, read_request
from palio.agents.scripted.basket import total_after
from palio.judging.words import fold, token_set, tokens, tokens_of
from palio.records import Record
from palio.world.arguments import CATALOGUE_TOOLS, canonical_arguments

PAGED = frozenset({"find_product", "find_products_in_same_shop"})
ID_NAMES = frozenset({"product_id", "product_ids"})
NUMBER_NAMES = frozenset({"discount_value", "threshold", "budget", "cap"})
# "wanted" repeats what the caller of check_product_match asked for, errors what anybody asked for.
ECHOES = frozenset({"wanted", "error"})
ENDINGS = ("s", "es", "ed", "ing", "'s")
LEAST_ROOT = 3
MAX_PRICES = 60
"""Prices of one result that enter sums: six pages of ten rows."""
_PIECES = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_KILO = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)k\b")


class _Phrases(Record, frozen=True):
    """The lists of derivable.toml."""

    closed: frozenset[str]
    sort: dict[str, tuple[str, ...]]
    rough: dict[str, Any]
    discount: dict[str, tuple[str, ...]]


@cache
def phrases() -> _Phrases:
    """The packaged phrase lists."""
    text = (resources.files("palio.corpus") / "derivable.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Phrases)


@lru_cache(maxsize=1 << 16)
def roots(token: str) -> frozenset[str]:
    """A token and what is left of it without a common ending; equal words share a root."""
    found = {token}
    for ending in ENDINGS:
        if token.endswith(ending) and len(token) - len(ending) >= LEAST_ROOT:
            found.add(token[: -len(ending)])
    if token.endswith("ies") and len(token) > LEAST_ROOT + 1:
        found.add(token[:-3] + "y")
    return frozenset(found)


def _says(folded: str, said: Iterable[str]) -> bool:
    return any(
        re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)" if phrase[0].isalpha() else phrase, folded)
        for phrase in said
    )


class Prefix:
    """What was known before a call; grows with each result.

    Args:
        request: the text that the agent was given.
    """

    def __init__(self, request: str) -> None:
        self._folded = fold(request)
        self._wanted: Wanted = read_request(request)
        self._roots: set[str] = set()
        self._asked = tokens(self._folded)
        self._numbers: set[float] = {float(n) for n in self._asked if _NUMBER.fullmatch(n)}
        self._numbers |= {float(n) for n in _NUMBER.findall(self._folded)}
        self._numbers |= {1000 * float(n) for n in _KILO.findall(self._folded)}
        self._told: set[str] = set(_words_of_ids(request))
        self._shops: set[str] = set(self._told)
        self._seen_numbers: set[float] = set()
        self._prices: list[frozenset[float]] = []
        self._pages: set[tuple[str, int]] = set()
        self._learn(self._asked)
        self._learn(
            first + second for first, second in zip(self._asked, self._asked[1:], strict=False)
        )
        self._learn(_read_words(self._wanted))

    def add(self, tool: str, arguments: Mapping[str, Any] | str, result: str) -> None:
        """Take in one result; replies that only repeat their caller's words add nothing."""
        if tool not in CATALOGUE_TOOLS:
            return
        given = canonical_arguments(tool, arguments)
        try:
            value = msgspec.json.decode(result)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._learn(tokens_of(result))
            return
        prices: set[float] = set()
        self._walk(value, set(_ids_of(given)), str(given.get("shop_id", "")), prices, 0)
        self._prices.append(frozenset(sorted(prices)[:MAX_PRICES]))
        if tool in PAGED and isinstance(value, list) and value:
            self._pages.add(_page_key(tool, given))

    def missing(self, tool: str, arguments: Mapping[str, Any] | str) -> tuple[str, ...]:
        """What of a call does not follow from the prefix, as ``name:token``; () when all does."""
        given = canonical_arguments(tool, arguments)
        found: list[str] = []
        for name, value in given.items():
            found += [f"{name}:{token}" for token in self._missing_of(tool, name, value, given)]
        return tuple(dict.fromkeys(found))

    def missing_ids(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The product ids that neither the request nor a result told."""
        return tuple(one for one in ids if one not in self._told)

    def missing_words(self, text: str) -> tuple[str, ...]:
        """The tokens of a text that do not follow from the prefix."""
        found = tokens_of(text)
        known = [self.knows(token) for token in found]
        for place in range(len(found) - 1):
            if not (known[place] and known[place + 1]) and self.knows(
                found[place] + found[place + 1]
            ):
                known[place] = known[place + 1] = True
        return tuple(token for token, holds in zip(found, known, strict=True) if not holds)

    def knows(self, token: str) -> bool:
        """Whether one folded token follows from the prefix, or is a closed-class word."""
        if token in phrases().closed or not roots(token).isdisjoint(self._roots):
            return True
        pieces = _PIECES.findall(token)
        return len(pieces) > 1 and all(not roots(p).isdisjoint(self._roots) for p in pieces)

    def knows_amount(self, amount: float) -> bool:
        """Whether an amount of money follows by the arithmetic that the module names."""
        return amount == 0 or any(_close(amount, known) for known in self._amounts())

    def knows_rate(self, number: float) -> bool:
        """Whether a number of a voucher is one of the request's; 34 and 0.34 are one rate."""
        forms = (number, number * 100, number / 100)
        return number == 0 or any(_close(form, n) for form in forms for n in self._numbers)

    def knows_price(self, amount: float) -> bool:
        """Whether an amount is a price, or another number, that a result showed."""
        shown = self._seen_numbers | self._numbers
        return any(_close(amount, n) or amount in (round(n), round(n, 1)) for n in shown)

    def knows_total(self, amount: float) -> bool:
        """Whether an amount is a total of prices seen, before or after the request's voucher."""
        voucher = self._wanted.voucher
        return any(
            _close(amount, total) or (voucher and _close(amount, total_after(total, voucher)))
            for total in self._spent()
        )

    def _learn(self, found: Iterable[str]) -> None:
        for token in found:
            self._roots |= roots(token)

    def _walk(self, value: Any, named: set[str], shop: str, prices: set[float], depth: int) -> None:
        if depth > 8:
            return
        if isinstance(value, list):
            for one in value:
                self._walk(one, named, shop, prices, depth + 1)
        elif isinstance(value, dict):
            for name, one in value.items():
                self._learn(tokens_of(name))
                if name in ECHOES:
                    continue
                if name == "product_id" and str(one) not in named:
                    self._told.add(str(one))
                elif name == "shop_id" and str(one) != shop:
                    self._shops.add(str(one))
                elif name == "price" and _is_number(one):
                    prices.add(float(one))
                self._walk(one, named, shop, prices, depth + 1)
        elif isinstance(value, str):
            self._learn(token_set(value))
        elif _is_number(value):
            self._seen_numbers.add(float(value))
            self._learn(tokens(str(value)))

    def _missing_of(
        self, tool: str, name: str, value: Any, given: Mapping[str, Any]
    ) -> Iterable[str]:
        text = str(value)
        if name in ID_NAMES:
            return self.missing_ids(part for part in text.split(",") if part)
        if name == "shop_id":
            return () if text in self._shops else (text,)
        if name == "price":
            return self._missing_bounds(text)
        if name == "service":
            return [tag for tag in text.split(",") if not self._asks_service(tag)]
        if name == "sort":
            return () if self._asks_sort(text) else (text,)
        if name == "page" and tool in PAGED:
            return () if self._turned(tool, given) else (text,)
        if name == "status":
            return ()
        if name == "voucher_type":
            return () if self._asks_discount(text) else (text,)
        return self._missing_numbers(name, text, value)

    def _missing_numbers(self, name: str, text: str, value: Any) -> Iterable[str]:
        if name == "product_prices":
            parts = [_float(part) for part in text.split(",")]
            return [str(p) for p in parts if p is None or not self.knows_price(p)]
        if name in NUMBER_NAMES and _is_number(value):
            return () if self.knows_rate(float(value)) else (text,)
        return [token for one in _texts(value) for token in self.missing_words(one)]

    def _missing_bounds(self, text: str) -> Iterable[str]:
        sides = [_float(side) for side in text.split("-") if side.strip()]
        if None in sides or not 1 <= len(sides) <= 2:
            return self.missing_words(text)
        return [f"{side:g}" for side in sides if side is not None and not self.knows_amount(side)]

    def _asks_service(self, tag: str) -> bool:
        said = {service for item in self._wanted.items for service in item.services}
        return tag.strip() in said or fold(tag).strip() in self._asked

    def _asks_sort(self, order: str) -> bool:
        if order == "priceasc" and (self._wanted.voucher or self._bounded()):
            return True
        said = phrases().sort.get(order)
        return _says(self._folded, said) if said else order == "default"

    def _bounded(self) -> bool:
        return any(item.low is not None or item.high is not None for item in self._wanted.items)

    def _asks_discount(self, kind: str) -> bool:
        voucher = self._wanted.voucher
        if voucher is not None and voucher.discount_type == kind:
            return True
        said = phrases().discount.get(kind)
        return _says(self._folded, said) if said else not self.missing_words(kind)

    def _turned(self, tool: str, given: Mapping[str, Any]) -> bool:
        search, page = _page_key(tool, given)
        return page <= 1 or (search, page - 1) in self._pages

    def _amounts(self) -> Iterable[float]:
        """Amounts that follow, cheapest to find first."""
        yield from self._numbers
        yield from self._seen_numbers
        for known in self._numbers:
            yield from (known + 1, known - 1, known + 0.01, known - 0.01)
        if _says(self._folded, phrases().rough["words"]):
            for known in self._numbers:
                for slack in phrases().rough["slack"]:
                    yield from (known * (1 + slack), known * (1 - slack))
        ceilings = self._ceilings()
        yield from ceilings
        several = max(2, len(self._wanted.items))
        for ceiling in ceilings:
            yield from (ceiling / share for share in range(2, several + 1))
            yield from (ceiling - spent for spent in self._spent())

    def _ceilings(self) -> list[float]:
        """What a basket may cost: the budget, and what the voucher brings down to it."""
        voucher = self._wanted.voucher
        if voucher is None:
            return sorted(self._numbers) if "budget" in self._asked else []
        if voucher.discount_type == "fixed":
            before = [voucher.budget + voucher.value]
        else:
            before = [voucher.budget / (1 - voucher.value / 100)] if voucher.value < 100 else []
            before += [voucher.budget + voucher.cap] if voucher.cap else []
        return [voucher.budget, *before]

    def _spent(self) -> Iterable[float]:
        """Prices seen, and sums of two of different results."""
        for prices in self._prices:
            yield from prices
        for first, second in combinations(self._prices, 2):
            yield from (one + two for one in first for two in second)


def _read_words(wanted: Wanted) -> Iterable[str]:
    for item in wanted.items:
        for text in (*item.words, *item.services):
            yield from tokens_of(text)
        for name, value in item.values:
            yield from tokens_of(name)
            yield from tokens_of(value)


def _words_of_ids(text: str) -> Iterable[str]:
    """What may be an id in free text: words with a digit."""
    return re.findall(r"[\w-]*\d[\w-]*", text)


def _ids_of(given: Mapping[str, Any]) -> Iterable[str]:
    for name in ID_NAMES:
        yield from str(given.get(name, "")).split(",")


def _page_key(tool: str, given: Mapping[str, Any]) -> tuple[str, int]:
    """(the search without its page, the page)."""
    page = given.get("page", 1)
    rest = sorted((name, str(value)) for name, value in given.items() if name != "page")
    return f"{tool} {rest}", page if isinstance(page, int) else 1


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _close(amount: float, known: float) -> bool:
    """Equal to the hundredth, or rounded to a whole number either way."""
    return abs(amount - known) < 0.006 or (amount.is_integer() and abs(amount - known) < 1)
