"""Two policies that see only the request and the tools: first hit, and a careful shopper."""

from __future__ import annotations

import itertools
import json
from typing import Any

from palio.agents.reading import Wanted, WantedItem, WantedVoucher, read_request
from palio.world import Toolbox
from palio.world.voucher import apply_discount

Row = dict[str, Any]
PLENTY = 4
"""Candidates of one item that are combined with those of the others."""


def first_hit(tools: Toolbox, query: str, items: int) -> list[str]:
    """The first results of the request verbatim, one an item."""
    return [row["product_id"] for row in _call(tools, "find_product", q=query)[:items]]


def careful(tools: Toolbox, query: str) -> list[str]:
    """Read the request, search with its filters, view what fits the words, keep what fits all."""
    wanted = read_request(query)
    if wanted.same_shop and len(wanted.items) > 1:
        return _one_shop(tools, wanted)
    matches = [candidates(tools, item) for item in wanted.items]
    chosen = [min(rows, key=lambda row: row["price"]) if rows else {} for rows in matches]
    return [str(row.get("product_id", "")) for row in chosen]


def candidates(tools: Toolbox, item: WantedItem, shop_id: str = "") -> list[Row]:
    """Rows whose title holds the words and whose SKUs and attributes hold the values."""
    rows: list[Row] = []
    filters = {"price": _price(item), "service": ",".join(item.services), "shop_id": shop_id}
    for page in range(1, 6):
        found = _call(tools, "find_product", q=" ".join(item.words), page=page, **filters)
        fitting = [row for row in found if fits_title(item, row["title"])]
        rows += fitting
        if len(fitting) < len(found) / 2 or not found:
            break
    if not item.values or not rows:
        return rows
    views = _call(tools, "view_product_information", product_ids=[r["product_id"] for r in rows])
    held = {view["product_id"]: fits_values(item, view) for view in views}
    return [row for row in rows if held.get(row["product_id"])]


def fits_title(item: WantedItem, title: str) -> bool:
    """Whether a title holds the words of an item."""
    return set(item.words) <= set(title.lower().split())


def fits_values(item: WantedItem, view: Row) -> bool:
    """Whether one SKU with the attributes holds every wanted value."""
    attributes = view.get("attributes", {})
    skus = list(view.get("sku_options", {}).values()) or [{}]
    return any(
        all(
            sku.get(name) == value or value in attributes.get(name, ())
            for name, value in item.values
        )
        for sku in skus
    )


def _one_shop(tools: Toolbox, wanted: Wanted) -> list[str]:
    """Each shop that has the first item is asked for the others."""
    fallback: list[str] = []
    for row in candidates(tools, wanted.items[0]):
        shop = row["shop_id"]
        rest = [candidates(tools, item, shop) for item in wanted.items[1:]]
        for basket in itertools.product([row], *(rows[:PLENTY] for rows in rest)):
            ids = [str(part["product_id"]) for part in basket]
            if wanted.voucher is None or affordable(basket, wanted.voucher):
                return ids
            fallback = fallback or ids
    return fallback


def affordable(basket: tuple[Row, ...], voucher: WantedVoucher) -> bool:
    """Whether the voucher brings a basket of one shop under the budget."""
    total = apply_discount(
        [row["price"] for row in basket],
        voucher.discount_type,
        voucher.value,
        threshold=voucher.threshold,
        cap=voucher.cap or 0,
    )
    return total.total_after <= voucher.budget


def _price(item: WantedItem) -> str:
    if item.low is None and item.high is None:
        return ""
    return "-".join("" if bound is None else f"{bound:g}" for bound in (item.low, item.high))


def _call(tools: Toolbox, name: str, **arguments: Any) -> list[Row]:
    given = {key: value for key, value in arguments.items() if value}
    reply = tools.call(name, given)
    rows = json.loads(reply.result)
    return rows if isinstance(rows, list) else []
