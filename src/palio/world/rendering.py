"""Tool results as compact JSON text, in the full or the compact form of a world."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from palio.records import Product
from palio.world.voucher import VoucherSum

Rows = Literal["full", "compact"]

_encode = msgspec.json.Encoder().encode


def json_text(value: Any) -> str:
    """JSON without white space, keys in the order given, text unescaped."""
    return _encode(value).decode("utf-8")


def search_rows(products: Iterable[Product], rows: Rows) -> str:
    """Result of a search: full rows have exactly the six fields of ShoppingBench."""
    if rows == "compact":
        return json_text(
            [
                {
                    "product_id": product.product_id,
                    "shop_id": product.shop_id,
                    "title": product.title,
                    "price": short_number(product.price),
                }
                for product in products
            ]
        )
    return json_text(
        [
            {
                "product_id": product.product_id,
                "shop_id": product.shop_id,
                "title": product.title,
                "price": product.price,
                "service": product.service,
                "sold_count": product.sold_count,
            }
            for product in products
        ]
    )


def detail_rows(products: Iterable[Product], rows: Rows) -> str:
    """Result of a view: no price, title, shop or service; compact rows leave empty members out."""
    if rows == "compact":
        return json_text([_compact_detail(product) for product in products])
    return json_text(
        [
            {
                "product_id": product.product_id,
                "short_description": product.short_description,
                "description": product.description,
                "sku_options": product.sku_options,
                "attributes": product.attributes,
            }
            for product in products
        ]
    )


def voucher_row(prices: list[float], total: VoucherSum, budget: float | None, rows: Rows) -> str:
    """Result of a voucher calculation; amounts are shown in hundredths."""
    fits = None if budget is None else total.total_after <= budget
    if rows == "compact":
        return json_text(
            {
                "total_before": short_number(round(total.total_before, 2)),
                "total_after": short_number(round(total.total_after, 2)),
                "within_budget": fits,
            }
        )
    return json_text(
        {
            "prices": prices,
            "total_before": round(total.total_before, 2),
            "discount_amount": round(total.discount, 2),
            "total_after": round(total.total_after, 2),
            "within_budget": fits,
            "voucher_applied": total.applied,
            "budget": budget,
        }
    )


def short_number(number: float) -> float | int:
    """A whole number as an integer, so that it prints without ".0"."""
    return int(number) if number.is_integer() else number


def _compact_detail(product: Product) -> dict[str, Any]:
    row: dict[str, Any] = {"product_id": product.product_id}
    if product.sku_options:
        row["sku_options"] = product.sku_options
    if product.attributes:
        row["attributes"] = product.attributes
    return row
