"""Targets, wishes, decoys and vouchers of one problem, for each of the three kinds."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from palio.records import Kind, Voucher
from palio.world.synthesis.config import ItemMix
from palio.world.synthesis.draft import PRICE_CEILING, Draft, Wish, make_draft
from palio.world.synthesis.stock import Stock
from palio.world.synthesis.wishes import make_wish, violations
from palio.world.voucher import voucher_total

MINIMAL_TOTAL = 100
"""A voucher problem's basket costs at least so many PHP (ShoppingBench's query synthesis)."""


@dataclass(frozen=True, slots=True)
class DecoyDraft:
    """A decoy: for which item, and what it violates ("shop" = right product, wrong shop)."""

    item: int
    draft: Draft
    violates: str


@dataclass(slots=True)
class Basket:
    """A problem before it has ids and words."""

    kind: Kind
    wishes: list[Wish]
    targets: list[Draft]
    voucher: Voucher | None = None
    decoys: list[DecoyDraft] = field(default_factory=list)


def product_basket(stock: Stock) -> Basket:
    """One target; its decoys are spread over random shops."""
    target = _target(stock, stock.shop(), frozenset())
    wish = make_wish(stock.rng, target, stock.config.product, stock.shape)
    basket = Basket("product", [wish], [target])
    _add_decoys(stock, basket, 0, stock.config.product.decoys, None)
    return basket


def shop_basket(stock: Stock) -> Basket:
    """Several targets of one shop.

    Each shop decoy is a shop with a match for the first item that lacks a match for another: the
    other item is missing there, or violates one of its constraints. Per item one decoy that
    violates a constraint; those of later items stand in the right shop.
    """
    rng, config = stock.rng, stock.config
    count = rng.choices(range(2, 2 + len(config.shop_items)), config.shop_items)[0]
    shop = stock.shop()
    basket = _same_shop(stock, "shop", count, shop, config.shop)
    used = {shop}
    for _ in range(config.shop_decoys):
        other = stock.shop(frozenset(used))
        used.add(other)
        _shop_decoy(stock, basket, other)
    for item in range(count):
        place = stock.shop(frozenset(used)) if item == 0 else shop
        _add_decoys(stock, basket, item, config.shop.decoys, place)
    return basket


def voucher_basket(stock: Stock) -> Basket:
    """Targets whose price the voucher brings under the budget; decoys that stay above it."""
    rng, config = stock.rng, stock.config
    count = rng.choices(range(1, 1 + len(config.voucher_items)), config.voucher_items)[0]
    of_shop = count > 1 and rng.random() < config.shop_vouchers
    shop = stock.shop()
    targets = _voucher_targets(stock, count, shop if of_shop else None)
    prices = [target.price for target in targets]
    for target in targets:
        stock.add(target)
    voucher = make_voucher(rng, prices, of_shop, whole=stock.shape.whole_prices)
    wishes = [make_wish(rng, target, config.voucher, stock.shape) for target in targets]
    for item, wish in enumerate(wishes):
        wish.ceiling = budget_ceiling(prices, item, voucher, _top(stock))
        if voucher.threshold > voucher.budget:
            wish.floor = max(0.0, math.ceil(voucher.threshold - sum(prices) + prices[item]))
    basket = Basket("voucher", wishes, targets, voucher)
    for item in range(count):
        place = shop if of_shop else None
        _add_decoys(stock, basket, item, config.voucher.decoys, place)
    if of_shop:
        _stray(stock, basket, rng.randrange(count), shop)
    return basket


def _top(stock: Stock) -> float:
    return float(PRICE_CEILING) if stock.shape.whole_prices else math.inf


def _target(stock: Stock, shop: int, avoid: frozenset[str]) -> Draft:
    wish = Wish(stock.family(avoid))
    return stock.add(make_draft(stock.rng, wish, shop, stock.shape))


def _same_shop(stock: Stock, kind: Kind, count: int, shop: int, mix: ItemMix) -> Basket:
    targets: list[Draft] = []
    for _ in range(count):
        avoid = frozenset(target.family.kind.name for target in targets)
        targets.append(_target(stock, shop, avoid))
    wishes = [make_wish(stock.rng, target, mix, stock.shape) for target in targets]
    return Basket(kind, wishes, targets)


def _voucher_targets(stock: Stock, count: int, shop: int | None) -> list[Draft]:
    """Targets of which each pays its share of the minimal total.

    A compact target costs little more than half of the top price at most, so that dearer decoys
    have room.
    """
    targets: list[Draft] = []
    for _ in range(count):
        avoid = frozenset(target.family.kind.name for target in targets)
        wish = Wish(stock.family(avoid))
        wish.floor = MINIMAL_TOTAL / count + 1
        if stock.shape.whole_prices:
            wish.ceiling = PRICE_CEILING * 0.55
        place = stock.shop() if shop is None else shop
        targets.append(make_draft(stock.rng, wish, place, stock.shape))
    return targets


def _add_decoys(stock: Stock, basket: Basket, item: int, count: int, shop: int | None) -> None:
    """Decoys of one item that violate one constraint each; `shop` None = anywhere."""
    wish, target = basket.wishes[item], basket.targets[item]
    for violated in violations(stock.rng, wish, count):
        place = stock.shop() if shop is None else shop
        decoy = make_draft(stock.rng, wish, place, stock.shape, violate=violated, near=target.price)
        basket.decoys.append(DecoyDraft(item, stock.add(decoy), violated))


def _shop_decoy(stock: Stock, basket: Basket, shop: int) -> None:
    """A shop where the first item matches and one other item does not."""
    rng = stock.rng
    first = make_draft(rng, basket.wishes[0], shop, stock.shape, near=basket.targets[0].price)
    basket.decoys.append(DecoyDraft(0, stock.add(first), "shop"))
    lacking = rng.randrange(1, len(basket.wishes))
    for item in range(1, len(basket.wishes)):
        wish, near = basket.wishes[item], basket.targets[item].price
        plan = violations(rng, wish, 1) if item == lacking else [""]
        if item == lacking and (not plan or rng.random() < 0.3):
            continue
        other = make_draft(rng, wish, shop, stock.shape, violate=plan[0], near=near)
        basket.decoys.append(DecoyDraft(item, stock.add(other), plan[0] or "shop"))


def _stray(stock: Stock, basket: Basket, item: int, shop: int) -> None:
    """For a shop voucher: the right product, cheaper, in a shop where the voucher fails."""
    place = stock.shop(frozenset({shop}))
    near = basket.targets[item].price * 0.95
    stray = make_draft(stock.rng, basket.wishes[item], place, stock.shape, near=near)
    basket.decoys.append(DecoyDraft(item, stock.add(stray), "shop"))


def make_voucher(rng: random.Random, prices: list[float], of_shop: bool, *, whole: bool) -> Voucher:
    """A voucher that applies to a basket and a budget just above what it then costs.

    threshold U[0.1, 0.9] of the total, face value U[0.1, 0.5] of the threshold or 10-50 %, cap in
    (threshold x discount, threshold], budget = ceil(after) + U[0, 0.1 after] (ShoppingBench).
    """
    total = sum(prices)
    threshold = max(1, int(total * rng.uniform(0.1, 0.9)))
    fields: dict[str, float] = {}
    if rng.random() < 0.5:
        fields["face_value"] = float(max(1, int(threshold * rng.uniform(0.1, 0.5))))
    else:
        step = rng.choice(range(10, 55, 5)) if whole else rng.randint(10, 50)
        fields["discount"] = step / 100
        fields["cap"] = float(rng.randint(int(threshold * step / 100) + 1, max(threshold, 1)))
    draft = Voucher(
        voucher_type="shop" if of_shop else "platform",
        threshold=float(threshold),
        discount_type="percentage" if "discount" in fields else "fixed",
        budget=0.0,
        **fields,
    )
    after = voucher_total(prices, draft)
    budget = math.ceil(after) + int(rng.uniform(0, 0.1) * after)
    return Voucher(
        voucher_type=draft.voucher_type,
        threshold=draft.threshold,
        discount_type=draft.discount_type,
        budget=float(budget),
        price_after_voucher=after,
        **fields,
    )


def budget_ceiling(prices: list[float], item: int, voucher: Voucher, top: float) -> float:
    """The highest price of one item up to `top`, to a centavo, that the budget still bears.

    The other items keep their prices.
    """
    rest = [price for place, price in enumerate(prices) if place != item]
    low, high = prices[item], min(prices[item] * 4 + 100, top)
    for _ in range(40):
        middle = (low + high) / 2
        if voucher_total([*rest, middle], voucher) <= voucher.budget:
            low = middle
        else:
            high = middle
    return math.floor(low * 100) / 100
