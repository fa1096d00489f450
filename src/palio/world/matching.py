"""Whether one product satisfies wanted options, attributes, price and services, and by which SKU.

The rule is the outcome scorer's: one single SKU (or none) is chosen, and a wanted pair holds when
that SKU or the attributes have it. Unlike the scorer, texts compare without regard to case and
surrounding space, since agents copy values from requests.
"""

from __future__ import annotations

from typing import Any

from palio.records import Product, Record
from palio.world.search import PriceBounds

Pair = tuple[str, str]


class WantedMatch(Record, frozen=True):
    """What a product is checked against; the empty members are not checked.

    Attributes:
        pairs: wanted (option or attribute name, value).
        price: inclusive bounds in PHP.
        services: all of these tags.
        shop_id: the shop that must sell it.
    """

    pairs: tuple[Pair, ...] = ()
    price: PriceBounds | None = None
    services: tuple[str, ...] = ()
    shop_id: str = ""


def check_match(product: Product, wanted: WantedMatch) -> dict[str, Any]:
    """The tool's result: overall answer, chosen SKU, and one line for each thing wanted.

    Returns:
        ``{"product_id", "match", "sku", "checks": [{"wanted", "found", "ok"}]}``; `sku` is the
        number of the SKU that holds the most wanted pairs, None when no SKU holds any.
    """
    sku, held = best_sku(product, wanted.pairs)
    checks = [_pair_check(product, sku, pair, pair in held) for pair in wanted.pairs]
    if wanted.price is not None:
        low, high = wanted.price
        fits = (low is None or product.price >= low) and (high is None or product.price <= high)
        text = "price " + "-".join("" if side is None else f"{side:g}" for side in (low, high))
        checks.append({"wanted": text, "found": product.price, "ok": fits})
    for tag in wanted.services:
        offered = ",".join(product.service)
        checks.append({"wanted": f"service {tag}", "found": offered, "ok": tag in product.service})
    if wanted.shop_id:
        same = wanted.shop_id == product.shop_id
        checks.append({"wanted": f"shop {wanted.shop_id}", "found": product.shop_id, "ok": same})
    return {
        "product_id": product.product_id,
        "match": all(check["ok"] for check in checks),
        "sku": sku,
        "checks": checks,
    }


def best_sku(product: Product, pairs: tuple[Pair, ...]) -> tuple[str | None, frozenset[Pair]]:
    """(SKU number, wanted pairs that hold with it); the first SKU with the most pairs wins.

    The number is None when no SKU holds any of the pairs that the best answer holds.
    """
    attributes = {
        (_folded(name), _folded(value))
        for name, values in product.attributes.items()
        for value in values
    }
    best: str | None = None
    held = _holding(pairs, attributes)
    for number, options in product.sku_options.items():
        own = {(_folded(name), _folded(value)) for name, value in options.items()}
        holding = _holding(pairs, attributes | own)
        ties_first = best is None and len(holding) == len(held) and bool(_holding(pairs, own))
        if len(holding) > len(held) or ties_first:
            best, held = number, holding
    return best, held


def _holding(pairs: tuple[Pair, ...], have: set[Pair]) -> frozenset[Pair]:
    return frozenset(pair for pair in pairs if (_folded(pair[0]), _folded(pair[1])) in have)


def _pair_check(product: Product, sku: str | None, pair: Pair, holds: bool) -> dict[str, Any]:
    """One wanted pair beside what the product has under that name."""
    options = product.sku_options.get(sku, {}) if sku is not None else {}
    found = [value for name, value in options.items() if _folded(name) == _folded(pair[0])]
    if not found and sku is None:
        found = [
            value
            for each in product.sku_options.values()
            for name, value in each.items()
            if _folded(name) == _folded(pair[0])
        ]
    for name, values in product.attributes.items():
        if _folded(name) == _folded(pair[0]):
            found.extend(values)
    text = ", ".join(dict.fromkeys(found))
    return {"wanted": f"{pair[0]}: {pair[1]}", "found": text or None, "ok": holds}


def _folded(text: str) -> str:
    return text.strip().casefold()
