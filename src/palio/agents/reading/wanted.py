"""What a request asks for, as far as its text says it."""

from __future__ import annotations

from typing import Literal

from palio.records.base import Record


class WantedItem(Record, frozen=True):
    """One item of a request.

    Attributes:
        words: search words, lower case: brand, line, type, then features; never values.
        values: (attribute or option name, value) pairs in catalogue spelling; the name is "" where
            the text does not decide it.
        low, high: inclusive price bounds in PHP, None for an open side.
        services: tags in the order of `palio.records.SERVICES`.
    """

    words: tuple[str, ...]
    values: tuple[tuple[str, str], ...] = ()
    low: float | None = None
    high: float | None = None
    services: tuple[str, ...] = ()


class WantedVoucher(Record, frozen=True):
    """The voucher's rules and the budget, in PHP.

    Attributes:
        value: the amount of a fixed discount, or percent (34 means 34 %).
        cap: highest discount of a percentage voucher, None for none.
    """

    voucher_type: Literal["platform", "shop"]
    threshold: float
    discount_type: Literal["fixed", "percentage"]
    value: float
    budget: float
    cap: float | None = None


class Wanted(Record, frozen=True):
    """A request as read: its items in order, whether one shop must sell them all, the voucher."""

    items: tuple[WantedItem, ...]
    same_shop: bool = False
    voucher: WantedVoucher | None = None
