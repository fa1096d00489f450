"""A scene is one request in a generated world with the products that a text may speak of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec

from palio.records import Problem, Product
from palio.world.synthesis import Synthesis, compact_config, full_config, synthesise
from palio.world.tools import Toolbox
from palio.world.world import COMPACT, FULL, World

PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
PRODUCTS, PROBLEMS = 1500, 210


@dataclass(frozen=True)
class Scene:
    """Slots of a text and the calls behind them; `a` is cheaper than `b` and unlike it in `key`."""

    problem: Problem
    world: World
    words: str
    slots: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> str:
        """Compact or full rows, as the world shows them."""
        return self.world.config.rows


def worlds(seed: int) -> list[tuple[Synthesis, World]]:
    """One compact and one full world, from one seed."""
    compact = synthesise(compact_config(seed, products=PRODUCTS, problems=PROBLEMS))
    full = synthesise(full_config(seed, products=PRODUCTS, problems=PROBLEMS))
    return [
        (compact, World.build(compact.catalogue, COMPACT)),
        (full, World.build(full.catalogue, FULL)),
    ]


def scenes(synthesis: Synthesis, world: World, rng: random.Random) -> Iterator[Scene]:
    """Every problem of a world that can be told as a scene, in random order."""
    problems = list(synthesis.problems)
    rng.shuffle(problems)
    for problem in problems:
        scene = _scene(problem, world, rng)
        if scene is not None:
            yield scene


def _scene(problem: Problem, world: World, rng: random.Random) -> Scene | None:
    products = world.catalogue.products
    target = products[problem.rewards[0].product_id]
    words = " ".join(target.title.split()[:3])
    page = [products[row] for row in world.index.page(words)]
    around = [products[row] for number in range(1, 6) for row in world.index.page(words, number)]
    prices = [row.price for row in around]
    pair = _pair([row for row in page if prices.count(row.price) == 1], rng)
    if pair is None or len(page) < 4:
        return None
    cheap, dear, key = pair
    other = next(row for row in page if row not in (cheap, dear))
    slots = {
        "query": problem.query,
        "noun": problem.title.split(",")[0],
        "brand": target.brand or words.split()[0],
        "key": key.replace("_", " "),
        "n": len(page),
        "a": _named(cheap, page, key),
        "b": _named(dear, page, key),
        "c": _named(other, page, key),
        "z": _ghost(products, rng),
        "y": _ghost(products, rng),
        "v": _voucher(problem, cheap, world),
    }
    return Scene(problem, world, words, slots)


def _pair(page: list[Product], rng: random.Random) -> tuple[Product, Product, str] | None:
    """Two rows of one page: the first is cheaper, and no value of `key` is shared."""
    found = []
    for cheap in page:
        for dear in page:
            if cheap.price < dear.price and cheap.shop_id != dear.shop_id:
                mine, theirs = traits(cheap), traits(dear)
                found += [
                    (cheap, dear, key)
                    for key in sorted(mine.keys() & theirs.keys() - {"brand"})
                    if not set(mine[key]) & set(theirs[key])
                ]
    return rng.choice(found) if found else None


def traits(product: Product) -> dict[str, list[str]]:
    """Every attribute and option of a product with its values."""
    values = {name: list(given) for name, given in product.attributes.items()}
    for sku in product.sku_options.values():
        for name, value in sku.items():
            values.setdefault(name, []).append(value)
    return values


def _named(product: Product, page: list[Product], key: str) -> SimpleNamespace:
    place = page.index(product) if product in page else 0
    return SimpleNamespace(
        id=product.product_id,
        shop=product.shop_id,
        title=product.title,
        price=f"{product.price:g}",
        t=traits(product).get(key, ["?"])[0],
        place=PLACES[min(place, len(PLACES) - 1)],
    )


def _ghost(products: dict[str, Product], rng: random.Random) -> SimpleNamespace:
    """A product that does not exist, with a price that nothing has."""
    digits = len(next(iter(products)))
    prices = {product.price for product in products.values()}
    while True:
        name = str(rng.randrange(10 ** (digits - 1), 10**digits))
        price = float(rng.randrange(2001, 4999))
        if name not in products and price not in prices:
            return SimpleNamespace(id=name, price=f"{price:g}", shop=name[::-1])


def voucher_arguments(problem: Problem, price: float) -> str:
    """Arguments of the calculator for one price under the problem's voucher."""
    voucher = problem.voucher
    if voucher is None:
        return ""
    given: dict[str, Any] = {
        "product_prices": f"{price:g}",
        "voucher_type": voucher.discount_type,
        "discount_value": voucher.face_value or 100 * (voucher.discount or 0),
        "threshold": voucher.threshold,
        "budget": voucher.budget,
    }
    return msgspec.json.encode(given).decode()


def _voucher(problem: Problem, product: Product, world: World) -> SimpleNamespace | None:
    if problem.voucher is None:
        return None
    reply = Toolbox(world).call("calculate_voucher", voucher_arguments(problem, product.price))
    answer = msgspec.json.decode(reply.result)
    return SimpleNamespace(
        before=f"{answer['total_before']:g}",
        after=f"{answer['total_after']:g}",
        fits=answer["within_budget"],
        budget=f"{problem.voucher.budget:g}",
    )
