"""A product as the shopping world knows it (ShoppingBench, arXiv 2508.04266)."""

from __future__ import annotations

from palio.records.base import Record

SERVICES = ("official", "freeShipping", "COD", "flashsale")
"""The closed set of service tags."""


class Product(Record, frozen=True):
    """One catalogue entry.

    Attributes:
        price: in PHP, finite, >= 0.
        service: subset of `SERVICES`.
        sku_options: SKU number as text -> option name -> value, lower case, at most 9 SKUs.
        attributes: attribute name -> values, lower case.
        category: path such as "A > B > C".
    """

    product_id: str
    shop_id: str
    title: str
    price: float
    service: tuple[str, ...] = ()
    sold_count: int = 0
    brand: str = ""
    category: str = ""
    short_description: str = ""
    description: str = ""
    specification: str = ""
    sku_options: dict[str, dict[str, str]] = {}
    attributes: dict[str, tuple[str, ...]] = {}
    main_image_url: str = ""
    product_url: str = ""

    def contents(self) -> str:
        """The text that is searched: title, then all SKU values, then all attribute values."""
        skus = " ".join(value for sku in self.sku_options.values() for value in sku.values())
        attributes = " ".join(value for values in self.attributes.values() for value in values)
        return f"{self.title}\n{skus}\n{attributes}"
