"""A hand-made catalogue whose every search result can be worked out on paper."""

from __future__ import annotations

from typing import Any

from palio.records import Product
from palio.world.catalogue import Catalogue


def product(product_id: str, title: str = "thing", **fields: Any) -> Product:
    return Product(
        **{"product_id": product_id, "shop_id": "s1", "title": title, "price": 10.0, **fields}
    )


def shelf() -> Catalogue:
    """Seven products; 20, 21 and 22 have the same text and tie, as 3 and 30 do."""
    red = {"1": {"color": "red", "size": "s"}, "2": {"color": "blue", "size": "xl"}}
    return Catalogue.from_products(
        "shelf",
        [
            product("21", "wool scarf", shop_id="s2", price=30.0, sold_count=5),
            product("20", "wool scarf", price=20.0, sold_count=7, service=("COD",)),
            product("22", "wool scarf", price=10.0, sold_count=7, service=("COD", "official")),
            product("3", "wool wool hat", price=15.0, sold_count=1),
            product("30", "wool hat wool", shop_id="s2", price=15.5, sold_count=9),
            product("4", "kettle", shop_id="s3", price=99.5, sku_options=red),
            product("5", "teapot", attributes={"material": ("steel", "glass")}, price=0.0),
        ],
    )
