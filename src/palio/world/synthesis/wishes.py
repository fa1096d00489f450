"""What a request says of its target, and decoys that miss exactly one thing it says."""

from __future__ import annotations

import random

from palio.records import PriceRange
from palio.world.synthesis.config import ItemMix
from palio.world.synthesis.draft import (
    PRICE_CEILING,
    PRICE_FLOOR,
    Draft,
    Shape,
    WantedTrait,
    Wish,
)
from palio.world.synthesis.lexicon import Trait

HIDDEN = ("price", "service", "budget")
"""Constraints that search does not see: only filters and views tell such decoys apart."""


def make_wish(rng: random.Random, target: Draft, mix: ItemMix, shape: Shape) -> Wish:
    """Choose what the request mentions of a target; everything chosen is true of it.

    Never empty-handed where `mix` can help it: a draw without any constraint is drawn again.
    """
    wish = _drawn(rng, target, mix, shape)
    for _ in range(20):
        hidden = wish.price is not None or wish.services
        again = not hidden and rng.random() < mix.spread
        if not again and (wish.constraints() or mix.traits[0] > 0.1):
            break
        wish = _drawn(rng, target, mix, shape)
    return wish


def _drawn(rng: random.Random, target: Draft, mix: ItemMix, shape: Shape) -> Wish:
    family = target.family
    brand = rng.random() < mix.brand
    features: tuple[str, ...] = ()
    if family.features and rng.random() < mix.feature:
        features = family.features[: rng.choice((1, 2))]
    price = price_range(rng, target.price, shape) if rng.random() < mix.price else None
    tags = [tag for tag in target.services if rng.random() < mix.service]
    rng.shuffle(tags)
    return Wish(
        family=family,
        brand=brand,
        line=not brand or rng.random() < mix.line,
        features=features,
        traits=_traits(rng, target, mix),
        price=price,
        services=tuple(sorted(tags[: mix.max_services])),
    )


def _traits(rng: random.Random, target: Draft, mix: ItemMix) -> tuple[WantedTrait, ...]:
    sku = rng.choice(target.skus) if target.skus else {}
    held: list[tuple[Trait, str]] = []
    for trait in target.family.traits:
        if trait.holder == "sku" and trait.name in sku:
            held.append((trait, sku[trait.name]))
        elif trait.holder == "attribute" and trait.name in target.attributes:
            held.append((trait, target.attributes[trait.name][0]))
    wanted = rng.choices(range(len(mix.traits)), mix.traits)[0]
    chosen = rng.sample(held, min(wanted, len(held)))
    order = [trait.name for trait in target.family.traits]
    chosen.sort(key=lambda pair: order.index(pair[0].name))
    return tuple(
        WantedTrait(trait, value, rng.choice(trait.values[value])) for trait, value in chosen
    )


def price_range(rng: random.Random, price: float, shape: Shape) -> PriceRange:
    """A range around a price that leaves room for prices outside it.

    ShoppingBench draws lower = int(p - U[0, p]) and upper = int(p + U[0, p]); here both are drawn
    from the half nearer to p, so that decoys may be near as well.
    """
    low = int(price - rng.uniform(0.05, 0.5) * price)
    high = int(price + rng.uniform(0.05, 0.6) * price) + 1
    modes = ["less", "greater", "between"]
    if shape.whole_prices:
        high, low = min(high, PRICE_CEILING), max(low, PRICE_FLOOR)
        if high > PRICE_CEILING - 20:
            modes.remove("less")
        if low < PRICE_FLOOR + 4:
            modes.remove("greater")
    mode = rng.choice(modes)
    if mode == "less":
        return PriceRange(mode="less than", high=float(high))
    if mode == "greater":
        return PriceRange(mode="greater than", low=float(max(low, 1)))
    return PriceRange(mode="between", low=float(max(low, 1)), high=float(high))


def violations(rng: random.Random, wish: Wish, count: int) -> list[str]:
    """Which constraint each of `count` decoys violates: every one once, hidden ones more often."""
    names = wish.constraints()
    if not names or count == 0:
        return []
    hidden = [name for name in names if name.split(":")[0] in HIDDEN]
    seen = [name for name in names if name not in hidden]
    rng.shuffle(hidden)
    rng.shuffle(seen)
    if hidden and seen:
        seen = seen[: max(1, count // 2 - 1)]
        hidden = hidden[: max(count - len(seen), 1)]
    plan = hidden + seen
    if count == 1:
        return [rng.choice(names)]
    while len(plan) < count:
        plan.append(rng.choice(hidden or seen))
    return plan[:count]
