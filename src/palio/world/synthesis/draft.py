"""A product before it has an id: made to satisfy a wish, or all of it but one constraint."""

from __future__ import annotations

import random
from dataclasses import dataclass

from palio.records import SERVICES, PriceRange
from palio.world.synthesis.lexicon import Group, ProductType, Trait

PRICE_FLOOR, PRICE_CEILING = 20, 990
"""Bounds of compact prices in PHP: two or three digits, so that a price is one or two tokens."""


@dataclass(frozen=True, slots=True)
class Family:
    """Products of one brand, line and type: their titles differ in keywords only."""

    brand: str
    line: str
    kind: ProductType
    group: Group
    features: tuple[str, ...] = ()

    @property
    def traits(self) -> tuple[Trait, ...]:
        """The group's traits that products of this type have."""
        name = self.kind.name
        return tuple(t for t in self.group.traits if not t.types or name in t.types)

    @property
    def slug(self) -> str:
        """Id of the family; equal across catalogues when brand, line and type are."""
        return f"{self.brand} {self.line} {self.kind.name}"


@dataclass(frozen=True, slots=True)
class WantedTrait:
    """One trait value that a request mentions, in the spoken form it uses."""

    trait: Trait
    value: str
    spoken: str


@dataclass(slots=True)
class Wish:
    """What a request says of one item.

    Attributes:
        ceiling: highest price that the budget bears, None without a budget.
        floor: lowest price at which the basket still earns its voucher, 0 where it need not.
    """

    family: Family
    brand: bool = True
    line: bool = True
    features: tuple[str, ...] = ()
    traits: tuple[WantedTrait, ...] = ()
    price: PriceRange | None = None
    services: tuple[str, ...] = ()
    ceiling: float | None = None
    floor: float = 0.0

    def constraints(self) -> list[str]:
        """Names of the constraints: "trait:<name>", "service:<tag>", "price", "budget"."""
        names = [f"trait:{wanted.trait.name}" for wanted in self.traits]
        names += [f"service:{tag}" for tag in self.services]
        if self.price is not None:
            names.append("price")
        if self.ceiling is not None:
            names.append("budget")
        return names


@dataclass(slots=True)
class Draft:
    """A product without an id; `shop` counts the catalogue's shops, `number` its products."""

    family: Family
    shop: int
    price: float
    services: tuple[str, ...]
    skus: list[dict[str, str]]
    attributes: dict[str, tuple[str, ...]]
    number: int = -1
    title_seed: int = 0
    sold: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """How the products of a world are built.

    Attributes:
        whole_prices: integral prices within the compact bounds.
        sku_limit: at most so many SKUs a product.
        presence: probability that a product has a trait that nobody asked for.
    """

    whole_prices: bool
    sku_limit: int
    presence: float


def free_draft(rng: random.Random, family: Family, shop: int, shape: Shape) -> Draft:
    """A product that nobody asked for."""
    return make_draft(rng, Wish(family), shop, shape)


def make_draft(
    rng: random.Random,
    wish: Wish,
    shop: int,
    shape: Shape,
    *,
    violate: str = "",
    near: float | None = None,
) -> Draft:
    """A product of the wish's family that satisfies every constraint except `violate`.

    Args:
        rng: source of everything that the wish leaves open.
        wish: family and constraints.
        shop: number of the shop.
        shape: how the world builds products.
        violate: "" for none, else one of `wish.constraints()`.
        near: price around which to draw where the wish leaves it open.
    """
    attributes: dict[str, tuple[str, ...]] = {}
    for trait in wish.family.traits:
        if trait.holder == "attribute":
            wanted = next((w.value for w in wish.traits if w.trait is trait), None)
            values = _attribute(rng, trait, wanted, f"trait:{trait.name}" == violate, shape)
            if values:
                attributes[trait.name] = values
    return Draft(
        family=wish.family,
        shop=shop,
        price=_price(rng, wish, shape, violate, near),
        services=_services(rng, wish, violate),
        skus=_skus(rng, wish, violate, shape),
        attributes=attributes,
        title_seed=rng.getrandbits(32),
        sold=int(rng.lognormvariate(3.0, 1.8)),
    )


def _attribute(
    rng: random.Random, trait: Trait, wanted: str | None, violated: bool, shape: Shape
) -> tuple[str, ...]:
    values = list(trait.values)
    if wanted is None:
        return (rng.choice(values),) if rng.random() < shape.presence else ()
    if not violated:
        return (wanted,)
    if shape.presence < 1 and rng.random() < 0.15:
        return ()
    return (rng.choice([value for value in values if value != wanted]),)


def _skus(rng: random.Random, wish: Wish, violate: str, shape: Shape) -> list[dict[str, str]]:
    """SKUs of which one holds all wanted values, or none does because of the violated option."""
    traits = [trait for trait in wish.family.traits if trait.holder == "sku"]
    wanted = {w.trait.name: w.value for w in wish.traits if w.trait.holder == "sku"}
    kept = [t for t in traits if t.name in wanted or rng.random() < shape.presence]
    if not kept:
        return []
    count = 1 if shape.sku_limit == 1 else rng.randint(1, shape.sku_limit)
    broken = violate.removeprefix("trait:") if violate.startswith("trait:") else ""
    skus = [_sku(rng, kept) for _ in range(count)]
    if wanted and broken not in wanted:
        skus[rng.randrange(count)].update(wanted)
    elif wanted:
        _break_skus(rng, skus, kept, wanted, broken)
    unique = {tuple(sku.items()): sku for sku in skus}
    return list(unique.values())


def _sku(rng: random.Random, traits: list[Trait]) -> dict[str, str]:
    return {trait.name: rng.choice(list(trait.values)) for trait in traits}


def _break_skus(
    rng: random.Random,
    skus: list[dict[str, str]],
    traits: list[Trait],
    wanted: dict[str, str],
    broken: str,
) -> None:
    """Let no SKU hold all wanted values, and one all but the broken option.

    With several SKUs and options the broken value still stands in another SKU: the words match,
    the combination does not exist.
    """
    values = next(list(trait.values) for trait in traits if trait.name == broken)
    others = [value for value in values if value != wanted[broken]]
    for sku in skus:
        if all(sku[name] == value for name, value in wanted.items()):
            sku[broken] = rng.choice(others)
    skus[0].update(wanted)
    skus[0][broken] = rng.choice(others)
    rest = [trait for trait in traits if trait.name in wanted and trait.name != broken]
    if rest and len(skus) > 1:
        skus[1][broken] = wanted[broken]
        trait = rng.choice(rest)
        skus[1][trait.name] = rng.choice([v for v in trait.values if v != wanted[trait.name]])
    elif not rest:
        for sku in skus:
            if sku[broken] == wanted[broken]:
                sku[broken] = rng.choice(others)


def _services(rng: random.Random, wish: Wish, violate: str) -> tuple[str, ...]:
    missing = violate.removeprefix("service:") if violate.startswith("service:") else ""
    held = {tag for tag in SERVICES if rng.random() < 0.4} | set(wish.services)
    return tuple(tag for tag in SERVICES if tag in held and tag != missing)


def _price(rng: random.Random, wish: Wish, shape: Shape, violate: str, near: float | None) -> float:
    group = wish.family.group
    centre = near or rng.lognormvariate(0, group.price_sigma) * group.price_median
    price = centre * (rng.lognormvariate(0, 0.2) if near else 1.0)
    low, high = _bounds(wish)
    if violate == "price":
        price = _outside(rng, low, high, shape)
    elif violate == "budget":
        price = high * rng.uniform(1.05, 1.6) + 1
    elif not (low or 0) <= price <= (high if high < 1e12 else price):
        price = rng.uniform(low or high * 0.6, high if high < 1e12 else low * 1.8)
    if not shape.whole_prices:
        return _within(round(price) if rng.random() < 0.6 else round(price, 2), price, low, high)
    return float(min(max(int(price), PRICE_FLOOR), PRICE_CEILING))


def _bounds(wish: Wish) -> tuple[float, float]:
    low = wish.price.low if wish.price and wish.price.low is not None else 0.0
    low = max(low, wish.floor)
    high = wish.price.high if wish.price and wish.price.high is not None else 1e12
    return low, min(high, wish.ceiling if wish.ceiling is not None else 1e12)


def _outside(rng: random.Random, low: float, high: float, shape: Shape) -> float:
    """A price just outside the range, on a side that has room."""
    sides = []
    floor = PRICE_FLOOR if shape.whole_prices else 1
    ceiling = PRICE_CEILING if shape.whole_prices else 1e12
    if low > floor:
        sides.append(rng.uniform(max(floor, low * 0.5), low - 1))
    if high < ceiling - 1:
        sides.append(rng.uniform(high + 1.01, min(ceiling, high * 1.6 + 2)))
    return rng.choice(sides)


def _within(rounded: float, price: float, low: float, high: float) -> float:
    """The rounded price unless rounding moved it over a bound."""
    crossed = (low <= price <= high) != (low <= rounded <= high)
    return round(price, 2) if crossed else float(rounded)
