"""A world that differs in some data of some products, in every answer that it will ever give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from palio.records import Product, Record
from palio.world.catalogue import Catalogue
from palio.world.tools import Toolbox
from palio.world.world import World

Field = Literal["price", "title", "option", "product_id"]


class Change(Record, frozen=True, omit_defaults=False):
    """One datum of one product that is another.

    Attributes:
        field: "option" is a value under `name` among the attributes or the options of any SKU.
        name: attribute or option name; "" for the other fields.
        before, after: the datum as text.
    """

    product_id: str
    field: Field
    before: str
    after: str
    name: str = ""


def edited_tools(world: World, changes: Iterable[Change]) -> Toolbox:
    """The tools of a world in which the changes hold, for all products that any tool shows.

    Retrieval stays the original world's: what is found, in which order, and what filters let
    through. A run is asked about a datum that it was shown, not about a search that went
    differently before anything was shown.
    """
    products = dict(world.catalogue.products)
    for change in changes:
        held = products.get(change.product_id)
        if held is None:
            continue
        edited = _edited(held, change)
        products[change.product_id] = edited
        # a renamed product answers to its new name; what searches find still has the old one
        products[edited.product_id] = edited
    catalogue = Catalogue(world.catalogue.catalogue_id, products, world.catalogue.rows)
    catalogue.__dict__["by_shop"] = world.catalogue.by_shop
    return Toolbox(World(catalogue, world.index, world.config))


def _edited(product: Product, change: Change) -> Product:
    if change.field == "price":
        return msgspec.structs.replace(product, price=float(change.after))
    if change.field == "title":
        return msgspec.structs.replace(product, title=change.after)
    if change.field == "product_id":
        return msgspec.structs.replace(product, product_id=change.after)
    return msgspec.structs.replace(
        product,
        attributes={
            name: tuple(_swapped(value, change) for value in values)
            if name == change.name
            else values
            for name, values in product.attributes.items()
        },
        sku_options={
            sku: {
                name: _swapped(value, change) if name == change.name else value
                for name, value in options.items()
            }
            for sku, options in product.sku_options.items()
        },
    )


def _swapped(value: str, change: Change) -> str:
    return change.after if value == change.before else value


def options_of(product: Product) -> dict[str, tuple[str, ...]]:
    """Name -> the values that a product has under it, in attributes or in any SKU."""
    found: dict[str, dict[str, None]] = {}
    for name, values in product.attributes.items():
        found.setdefault(name, {}).update(dict.fromkeys(values))
    for options in product.sku_options.values():
        for name, value in options.items():
            found.setdefault(name, {})[value] = None
    return {name: tuple(values) for name, values in found.items()}


def amount(price: float) -> str:
    """A price as text."""
    return str(int(price)) if float(price).is_integer() else repr(price)


def price_change(product: Product, price: float) -> Change:
    """A product that costs something else."""
    return Change(
        product_id=product.product_id,
        field="price",
        before=amount(product.price),
        after=amount(price),
    )


def title_change(product: Product, title: str) -> Change:
    """A product that is called something else."""
    return Change(product_id=product.product_id, field="title", before=product.title, after=title)


def option_change(product: Product, name: str, before: str, after: str) -> Change:
    """A product that has another value."""
    return Change(
        product_id=product.product_id, field="option", before=before, after=after, name=name
    )
