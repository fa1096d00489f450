"""Offline, thinking is put together from what the moment shows; no word of it comes from elsewhere.

The style is that of the scripted models (`palio.agents.scripted`), since a small model learns from
wanted and seen side by side. Where the record does not support a choice the text says so; where it
speaks against it, because another product of the same search holds what the choice lacks, there is
no honest text and none is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palio.agents.scripted.basket import number, total_after
from palio.agents.scripted.candidates import money, row_id
from palio.agents.scripted.conversation import read_rows
from palio.agents.scripted.verdicts import verdict
from palio.corpus.salvage.moment import Moment, UnfoundedError
from palio.corpus.salvage.scene import SEARCHES, VIEW, Look, Scene
from palio.judging.answers import product_ids

RECOMMEND = "recommend_product"


class Narrator:
    """Writes thinking without a model; a pure function of the moment."""

    rewriter_id = "narrator-1"

    def thinking(self, moment: Moment) -> str:
        """See `palio.corpus.salvage.moment.Rewriter`.

        Raises:
            UnfoundedError: the record speaks against what is recommended.
        """
        scene = Scene(moment)
        tool, arguments = moment.calls[0]
        notes = _of_the_last_result(scene)
        if tool == RECOMMEND:
            notes += _recommending(scene, product_ids(arguments.get("product_ids")))
        else:
            notes += _NEXT.get(tool, _calling)(scene, arguments)
        return " ".join(note for note in notes if note) or f"next, {tool}."


def _of_the_last_result(scene: Scene) -> list[str]:
    """What the last result says."""
    if not scene.moment.steps:
        return []
    last = scene.moment.steps[-1]
    rows = read_rows(last.result)
    if last.tool in SEARCHES and not rows:
        return ["no results."]
    if last.tool == VIEW:
        said = [scene.looks[row_id(row)] for row in rows if scene.looks[row_id(row)].said]
        return [*_need(said), *(verdict(look.product_id, look.checks) for look in said)]
    if last.tool == "calculate_voucher" and rows and "total_after" in rows[0]:
        budget = last.arguments.get("budget")
        within = "yes" if rows[0].get("within_budget") else "no"
        end = f" within {number(budget)} {within}" if isinstance(budget, int | float) else ""
        return [f"{number(rows[0]['total_after'])}{end}."]
    if last.tool == "check_product_match" and rows and "match" in rows[0]:
        return [f"{last.arguments.get('product_id')} {'yes' if rows[0]['match'] else 'no'}."]
    return []


def _need(looks: Sequence[Look]) -> list[str]:
    wanted = dict.fromkeys(check.wanted for look in looks for check in look.checks)
    return [f"need {' '.join(wanted)}."] if wanted else []


def _searching(scene: Scene, arguments: dict[str, Any]) -> list[str]:
    text = str(arguments.get("q", ""))
    before = scene.searches[-1] if scene.searches else None
    if before and before[0].arguments.get("q") == text:
        page = arguments.get("page", 1)
        if isinstance(page, int) and page > 1:
            return ["next page."]
        if not before[1] and len(arguments) < len(before[0].arguments):
            return ["search without filters."]
    return [f"search {text}."]


def _searching_a_shop(_scene: Scene, arguments: dict[str, Any]) -> list[str]:
    return [
        f"search {arguments.get('q', '')}".rstrip()
        + f", same shop as {arguments.get('product_id')}."
    ]


def _viewing(scene: Scene, arguments: dict[str, Any]) -> list[str]:
    ids = product_ids(arguments.get("product_ids"))
    fitting = scene.fitting(ids)
    others = [one for one in ids if one not in fitting]
    return [
        f"{' '.join(fitting)} fit." if fitting else "",
        f"look at {' '.join(others)} too." if fitting and others else "",
        f"look at {' '.join(others)}." if others and not fitting else "",
    ]


def _adding_up(_scene: Scene, arguments: dict[str, Any]) -> list[str]:
    prices = str(arguments.get("product_prices", "")).split(",")
    return [f"total of {' and '.join(prices)} with the voucher."]


def _matching(_scene: Scene, arguments: dict[str, Any]) -> list[str]:
    return [f"check {arguments.get('product_id')}."]


def _calling(_scene: Scene, _arguments: dict[str, Any]) -> list[str]:
    return []


_NEXT = {
    "find_product": _searching,
    "find_products_in_same_shop": _searching_a_shop,
    "view_product_information": _viewing,
    "calculate_voucher": _adding_up,
    "check_product_match": _matching,
}


def _recommending(scene: Scene, picks: Sequence[str]) -> list[str]:
    looks = [look for pick in picks if (look := scene.looks.get(pick)) is not None]
    _object(scene, looks, picks)
    unsaid = [look for look in looks if look.checks and not look.said]
    notes = [verdict(look.product_id, look.checks) for look in unsaid]
    shops, one_shop = _shops(scene, picks)
    money_notes, affordable = _affording(scene, picks)
    notes += [*shops, *money_notes]
    names = " and ".join(picks)
    full = one_shop and affordable and len(picks) >= len(scene.items)
    if not full or any(not look.holds for look in looks):
        return [*notes, f"nothing matches in full, so recommend the closest one, {names}."]
    rival = _rival(scene, picks)
    if rival:
        return [*notes, f"so recommend {names} rather than {rival[0]}, because {rival[1]}."]
    return [*notes, f"so recommend {names}."]


def _object(scene: Scene, looks: Sequence[Look], picks: Sequence[str]) -> None:
    for look in looks:
        search = scene.ranks.get(look.product_id, (0, 0))[0]
        for other in () if look.holds else scene.looks.values():
            rank = scene.ranks.get(other.product_id, (0, 0))
            if other.checks and other.holds and rank[0] == search and other.product_id not in picks:
                raise UnfoundedError(
                    f"the record speaks against {look.product_id}: {other.product_id} has "
                    f"{look.failed[0].wanted}"
                )


def _shops(scene: Scene, picks: Sequence[str]) -> tuple[list[str], bool]:
    """Where one shop must sell everything: the shops side by side, and whether they are one."""
    voucher = scene.wanted.voucher
    one_shop = scene.wanted.same_shop or (voucher is not None and voucher.voucher_type == "shop")
    shops = scene.shops(picks)
    if not one_shop or len(picks) < 2 or len(shops) < len(picks):
        return [], True
    same = len(set(shops)) == 1
    return [f"shop {' '.join(shops)} same {'yes' if same else 'no'}."], same


def _affording(scene: Scene, picks: Sequence[str]) -> tuple[list[str], bool]:
    """Prices and the total after the voucher, unless the tool has said it; whether it fits."""
    voucher = scene.wanted.voucher
    prices = [scene.price(pick) for pick in picks]
    known = [price for price in prices if price is not None]
    if voucher is None or len(known) != len(prices):
        return [], True
    after = round(total_after(sum(known), voucher), 2)
    fits = after <= voucher.budget
    if scene.moment.steps[-1].tool == "calculate_voucher":
        return [], fits
    listed = " ".join(f"{pick} {money(price)}" for pick, price in zip(picks, known, strict=True))
    within = f"{number(after)} within {number(voucher.budget)} {'yes' if fits else 'no'}."
    return [f"{listed}.", within], fits


def _rival(scene: Scene, picks: Sequence[str]) -> tuple[str, str] | None:
    """A seen product that was not taken, and a true reason; None where the record has none.

    In this order: it failed a check that the pick passes, its title lacks a wanted word, it costs
    more, it ranks lower in the same search.
    """
    for pick in picks:
        held = scene.looks.get(pick)
        for look in scene.looks.values():
            passed = {check.wanted for check in held.checks if check.ok} if held else set()
            wanted = [check.wanted for check in look.failed if check.wanted in passed]
            if look.product_id not in picks and wanted:
                return look.product_id, f"it is {wanted[0]}"
    for pick in picks:
        if pick in scene.ranks:
            return _lesser(scene, pick, picks)
    return None


def _lesser(scene: Scene, pick: str, picks: Sequence[str]) -> tuple[str, str] | None:
    """Of the search that showed `pick`, one that is worse by title, price or rank."""
    search, rank = scene.ranks[pick]
    step, rows = scene.searches[search - 1]
    item = scene.item(str(step.arguments.get("q", "")))
    others = [row_id(row) for row in rows if row_id(row) not in picks]
    own = set(scene.lacks(pick, item))
    for other in others:
        lacking = [word for word in scene.lacks(other, item) if word not in own]
        if lacking:
            return other, f"it is {lacking[0]}"
    price = scene.price(pick)
    for other in others:
        theirs = scene.price(other)
        if price is not None and theirs is not None and price < theirs:
            return other, f"{money(price)} is cheaper"
    lower = [row_id(row) for row in rows[rank + 1 :] if row_id(row) not in picks]
    return (lower[0], "it ranks first") if lower and rank == 0 else None
