"""Whether a basket stays within the budget: asked of the voucher tool, else computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palio.agents.reading import WantedVoucher
from palio.agents.scripted.desk import Desk

TOOL = "calculate_voucher"


def affordable(
    desk: Desk, basket: Sequence[tuple[str, float]], voucher: WantedVoucher, *, names: bool = True
) -> bool:
    """Whether (product id, price) pairs fit the budget; asks the tool where it is offered.

    Args:
        desk: where notes go.
        basket: product ids with prices in PHP.
        voucher: its rules, and the budget.
        names: whether notes name ids and amounts.

    Raises:
        NextTurn, OutOfTurns: see `Desk.ask`.
    """
    if names:
        # the price first: a small model finds the least price above, then copies the id that
        # follows it there; asked for the id first it named a wrong one in most voucher problems
        desk.say(" ".join(f"{number(price)} {product_id}" for product_id, price in basket) + ".")
    prices = [price for _, price in basket]
    if desk.offered and TOOL not in desk.offered:
        after = total_after(sum(prices), voucher)
        within = after <= voucher.budget
    else:
        rows = desk.ask(TOOL, voucher_arguments(prices, voucher))
        row = rows[0] if rows else {}
        if "total_after" not in row:
            return True
        after, within = row["total_after"], bool(row.get("within_budget"))
    if names:
        desk.say(f"{number(after)} within {number(voucher.budget)} {'yes' if within else 'no'}.")
    return within


def voucher_arguments(prices: Sequence[float], voucher: WantedVoucher) -> dict[str, Any]:
    """Arguments of `calculate_voucher`, in the order that training relies on."""
    arguments: dict[str, Any] = {
        "product_prices": ",".join(str(number(price)) for price in prices),
        "voucher_type": voucher.discount_type,
        "discount_value": number(voucher.value),
        "threshold": number(voucher.threshold),
        "budget": number(voucher.budget),
    }
    if voucher.cap:
        arguments["cap"] = number(voucher.cap)
    return arguments


def total_after(total: float, voucher: WantedVoucher) -> float:
    """What a total costs after the voucher, which applies from its threshold on."""
    if total < voucher.threshold:
        return total
    if voucher.discount_type == "fixed":
        return max(0.0, total - voucher.value)
    cut = total * voucher.value / 100
    return total - min(cut, voucher.cap) if voucher.cap else total - cut


def number(amount: float) -> int | float:
    """Integral amounts as integers, as the tools print them."""
    return int(amount) if float(amount).is_integer() else amount
