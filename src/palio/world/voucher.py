"""Voucher arithmetic, once: the scorer, the tool and the generator all take it from here.

Source: ShoppingBench (arXiv 2508.04266). A voucher qualifies when the total reaches its threshold
and, for a shop voucher, all products come from one shop. Money is in PHP and is never rounded here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from palio.records import InputError, Record, Voucher

DiscountType = Literal["fixed", "percentage"]


class VoucherSum(Record, frozen=True, omit_defaults=False):
    """What a basket costs before and after a voucher.

    Attributes:
        applied: whether the voucher qualified.
        discount: total_before - total_after, >= 0.
    """

    total_before: float
    total_after: float
    discount: float
    applied: bool


def discounted(
    total: float, discount_type: DiscountType, value: float, cap: float | None = None
) -> float:
    """Total after the discount, without any condition; may fall below 0 for a fixed one.

    Args:
        total: sum of the prices.
        discount_type: how `value` is meant.
        value: the amount for "fixed", the fraction in [0, 1] for "percentage".
        cap: most that a percentage may take off; None for no cap.
    """
    if discount_type == "fixed":
        return total - value
    after = total * (1 - value)
    return after if cap is None else max(after, total - cap)


def qualifies(voucher: Voucher, total: float, shop_ids: Iterable[str]) -> bool:
    """Whether a basket of this total from these shops may use the voucher."""
    if voucher.voucher_type == "shop" and len(set(shop_ids)) > 1:
        return False
    return total >= voucher.threshold


def total_after(voucher: Voucher, total: float) -> float:
    """Total after the task's voucher, given that it qualifies.

    Raises:
        InputError: the voucher lacks the number that its discount type needs.
    """
    value = voucher.face_value if voucher.discount_type == "fixed" else voucher.discount
    if value is None:
        raise InputError(f"a {voucher.discount_type} voucher without its discount")
    return discounted(total, voucher.discount_type, value, voucher.cap)


def voucher_total(prices: Sequence[float], voucher: Voucher, shop_ids: Iterable[str] = ()) -> float:
    """What the basket costs: after the voucher where it qualifies, the plain total otherwise."""
    total = sum(prices)
    return total_after(voucher, total) if qualifies(voucher, total, shop_ids) else total


def within_budget(prices: Sequence[float], voucher: Voucher, shop_ids: Iterable[str] = ()) -> bool:
    """Whether the basket fits the task's budget, with the voucher or without it."""
    return (
        sum(prices) <= voucher.budget or voucher_total(prices, voucher, shop_ids) <= voucher.budget
    )


def apply_discount(
    prices: Sequence[float],
    discount_type: DiscountType,
    value: float,
    *,
    threshold: float = 0.0,
    cap: float = 0.0,
) -> VoucherSum:
    """The tool's form of the same arithmetic: percentages in per cent, a cap of 0 means none.

    The total never falls below 0.

    Raises:
        InputError: a number is negative or not finite, or a percentage is over 100.
    """
    for name, number in (("discount_value", value), ("threshold", threshold), ("cap", cap)):
        if not math.isfinite(number) or number < 0:
            raise InputError(f"{name} must be a finite number of at least 0, not {number!r}")
    if discount_type == "percentage" and value > 100:
        raise InputError(f"discount_value is {value!r} %, over 100 %")
    total = sum(prices)
    fraction = value / 100 if discount_type == "percentage" else value
    applied = total >= threshold
    after = total
    if applied:
        after = max(0.0, discounted(total, discount_type, fraction, cap or None))
    return VoucherSum(
        total_before=total, total_after=after, discount=total - after, applied=applied
    )
