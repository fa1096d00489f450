"""What the reader must give for a generated problem, derived from its reward and voucher."""

from __future__ import annotations

from palio.agents.reading import WantedItem, WantedVoucher
from palio.records import SERVICES, Problem, Reward

Constraints = tuple[frozenset[tuple[str, str]], float | None, float | None, tuple[str, ...]]


def reward_constraints(reward: Reward) -> Constraints:
    """(name, value) pairs, low, high, services that a reward demands."""
    pairs = {(name, value) for sku in reward.sku_options for name, value in sku.items()}
    pairs |= {(n, v) for held in reward.attributes for n, values in held.items() for v in values}
    price = reward.price[0] if reward.price else None
    services = tuple(tag for tag in SERVICES if tag in reward.service)
    low, high = (price.low, price.high) if price else (None, None)
    return frozenset(pairs), low, high, services


def read_constraints(item: WantedItem) -> Constraints:
    """The same of an item as read."""
    return frozenset(item.values), item.low, item.high, item.services


def problem_voucher(problem: Problem) -> WantedVoucher | None:
    """The voucher as a perfect reader gives it."""
    voucher = problem.voucher
    if voucher is None:
        return None
    fixed = voucher.discount_type == "fixed"
    value = voucher.face_value if fixed else round((voucher.discount or 0) * 100, 6)
    return WantedVoucher(
        voucher_type=voucher.voucher_type,
        threshold=voucher.threshold,
        discount_type=voucher.discount_type,
        value=float(value or 0),
        budget=voucher.budget,
        cap=voucher.cap,
    )
