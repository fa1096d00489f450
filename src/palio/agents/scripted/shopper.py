"""The shopping strategies: what a careful, a terse, a sloppy and a hasty shopper do and think.

Thinking is terse on purpose. A model of one or two million parameters must be able to learn it, and
what made one learn was a verdict that puts wanted and seen side by side (`6093 blue beige no`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice, product

import msgspec

from palio.agents.reading import Wanted, WantedItem
from palio.agents.scripted.basket import affordable, total_after
from palio.agents.scripted.candidates import RANKED, Candidate, Finder, Style
from palio.agents.scripted.desk import Desk, OutOfTurns

ANCHOR_SHOPS = 6
"""Shops that are tried for the other items before settling for less."""
BASKETS = 3
"""Baskets whose voucher is computed before settling for the first."""

STYLES = {
    "scripted-careful": Style(weighs=True),
    "scripted-terse": Style(),
    "scripted-sloppy": Style(names=False, drops=0.4),
    "scripted-hasty": Style(looks=False, names=False, filters=False),
}


class Shopper:
    """One strategy over one desk; `solve` ends in an answer or in the model's next turn."""

    def __init__(self, desk: Desk, wanted: Wanted, style: Style, rng: random.Random) -> None:
        self.desk = desk
        self.style = style
        self.finder = Finder(desk, style)
        items = wanted.items or (WantedItem(words=tuple(desk.conversation.request.split())),)
        self.items = tuple(_dropped(item, style.drops, rng) for item in items)
        self.voucher = wanted.voucher
        self.one_shop = len(items) > 1 and (
            wanted.same_shop
            or (wanted.voucher is not None and wanted.voucher.voucher_type == "shop")
        )
        self.partial: list[Candidate] = []

    def solve(self) -> list[str]:
        """Product ids in the order of the request; [] when nothing was found."""
        if not self.style.looks:
            return self._first_hits()
        try:
            picks = self._from_one_shop() if self.one_shop else self._from_anywhere()
            if picks and self.one_shop and self.voucher:
                self._affordable(picks)
        except OutOfTurns:
            picks = None
        if not picks:
            return self._settle()
        self._say_pick(picks)
        return [pick.product_id for pick in picks]

    def _from_anywhere(self) -> list[Candidate] | None:
        if self.voucher is not None:
            return self._within_budget()
        picks: list[Candidate] = []
        for item in self.items:
            taken = [pick.product_id for pick in picks]
            match = next(self.finder.candidates(item, taken=taken), None)
            if match is None:
                return None
            picks.append(match)
        return picks

    def _within_budget(self) -> list[Candidate] | None:
        """The first basket that the voucher tool says is affordable.

        Cheapest first where titles are exact; else in the order of the search, baskets that own
        arithmetic finds too dear last.
        """
        assert self.voucher is not None
        options = [self.finder.all_of_a_page(item) for item in self.items]
        if not all(options):
            return None
        baskets = [list(picks) for picks in islice(product(*options), 10_000)]
        if self.desk.compact:
            baskets.sort(key=_total)
        else:
            voucher = self.voucher
            baskets.sort(key=lambda picks: total_after(_total(picks), voucher) > voucher.budget)
        for basket in baskets[:BASKETS]:
            if self._affordable(basket):
                return basket
        return baskets[0]

    def _affordable(self, picks: Sequence[Candidate]) -> bool:
        assert self.voucher is not None
        basket = [(pick.product_id, pick.price) for pick in picks]
        return affordable(self.desk, basket, self.voucher, names=self.style.names)

    def _from_one_shop(self) -> list[Candidate] | None:
        """All items from the shop of a candidate of the first item, shop after shop."""
        tried: dict[str, Candidate] = {}
        for anchor in self.finder.candidates(self.items[0]):
            if anchor.shop_id in tried:
                continue
            if len(tried) >= ANCHOR_SHOPS:
                break
            tried[anchor.shop_id] = anchor
            if self.style.names:
                self.desk.say(f"{anchor.product_id} shop {anchor.shop_id}.")
            picks = [anchor]
            for item in self.items[1:]:
                taken = [pick.product_id for pick in picks]
                match = next(self.finder.candidates(item, anchor.shop_id, taken), None)
                if match is None:
                    where = f"shop {anchor.shop_id}" if self.style.names else "that shop"
                    self.desk.say(f"not in {where}.")
                    break
                picks.append(match)
            else:
                return [self._with_shop_rival(anchor, list(tried.values())), *picks[1:]]
            if len(picks) > len(self.partial):
                self.partial = picks
        return None

    def _with_shop_rival(self, anchor: Candidate, tried: Sequence[Candidate]) -> Candidate:
        """The anchor, preferred to one that fits as well because its shop has all items."""
        reason = f"shop {anchor.shop_id} has {'both' if len(self.items) == 2 else 'all'}"
        if len(tried) > 1:
            return msgspec.structs.replace(anchor, rival=tried[0].product_id, reason=reason)
        if anchor.rival and anchor.reason == RANKED:
            return msgspec.structs.replace(anchor, reason=reason)
        return anchor

    def _say_pick(self, picks: Sequence[Candidate]) -> None:
        """The last thought; long enough for a judge that asks for 30 tokens (UTF-8 bytes / 4)."""
        if not self.style.names:
            said = f"{self.finder.shown} results, one of them looks right and is close enough,"
            self.desk.say(f"{said} so take it.")
            return
        names = " and ".join(pick.product_id for pick in picks)
        rivals = [pick for pick in picks if pick.rival and pick.rival not in names]
        if not self.style.weighs:
            said = "yes" in self.desk.thinking()
            self.desk.say("" if said else f"{names} has everything that was asked for,")
            self.desk.say(f"so recommend {names}, which fits the request.")
        elif rivals:
            best = rivals[0]
            self.desk.say(f"so recommend {names} rather than {best.rival}, because {best.reason}.")
        else:
            self.desk.say(f"so recommend {names}, the only one that fits the request.")

    def _settle(self) -> list[str]:
        """The best that was seen, when nothing satisfies the request."""
        ids = [self.finder.best.get(item, "") for item in self.items]
        for at, pick in enumerate(self.partial):
            ids[at] = pick.product_id
        known = [product_id for product_id in ids if product_id]
        if not known:
            self.desk.say("nothing found.")
            return []
        closest = f", {known[0]}" if self.style.names else ""
        self.desk.say(f"nothing matches in full, so recommend the closest one{closest}.")
        return [product_id or known[0] for product_id in ids]

    def _first_hits(self) -> list[str]:
        """The first row of each search, unseen."""
        found = [self.finder.first_hit(item) for item in self.items]
        self.desk.say("the first is most likely what was asked for, so take it without looking.")
        return [product_id for product_id in found if product_id]


def _total(picks: Sequence[Candidate]) -> float:
    return sum(pick.price for pick in picks)


def _dropped(item: WantedItem, share: float, rng: random.Random) -> WantedItem:
    """The item without some of its constraints; each goes with probability `share`."""
    if not share:
        return item
    bounded = rng.random() >= share
    words = item.words[1:] if len(item.words) > 2 and rng.random() < share / 2 else item.words
    return msgspec.structs.replace(
        item,
        words=words,
        values=tuple(pair for pair in item.values if rng.random() >= share),
        low=item.low if bounded else None,
        high=item.high if bounded else None,
        services=tuple(name for name in item.services if rng.random() >= share),
    )
