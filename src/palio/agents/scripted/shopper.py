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
ALL_BASKETS = 10_000
"""Baskets that are thought of at all."""
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
            picks = self._picks()
        except OutOfTurns:
            picks = None
        if not picks:
            return self._settle()
        self._say_pick(picks)
        return [pick.product_id for pick in picks]

    def _picks(self) -> list[Candidate] | None:
        if self.voucher is None:
            return self._from_one_shop() if self.one_shop else self._from_anywhere()
        if self.one_shop:
            return self._budgeted_from_one_shop()
        return self._first_affordable([self.finder.all_of_a_page(item) for item in self.items])

    def _from_anywhere(self) -> list[Candidate] | None:
        picks: list[Candidate] = []
        for item in self.items:
            taken = [pick.product_id for pick in picks]
            match = next(self.finder.candidates(item, taken=taken), None)
            if match is None:
                return None
            picks.append(match)
        return picks

    def _first_affordable(self, options: Sequence[Sequence[Candidate]]) -> list[Candidate] | None:
        """The first basket that the voucher tool says is affordable, else the first of all.

        Cheapest first where titles are exact; else in the order of the search, baskets that own
        arithmetic finds too dear last. None when an item has no candidate.
        """
        assert self.voucher is not None
        if not all(options):
            return None
        baskets = [list(picks) for picks in islice(product(*options), ALL_BASKETS)]
        if self.desk.compact:
            baskets.sort(key=_total)
        else:
            voucher = self.voucher
            baskets.sort(key=lambda picks: total_after(_total(picks), voucher) > voucher.budget)
        for basket in baskets[:BASKETS]:
            if self._affordable(basket):
                return basket
        return baskets[0]

    def _budgeted_from_one_shop(self) -> list[Candidate] | None:
        """All items from one shop of the first item's candidates, within the budget if possible."""
        groups: dict[str, list[Candidate]] = {}
        for anchor in self.finder.all_of_a_page(self.items[0]):
            groups.setdefault(anchor.shop_id, []).append(anchor)
        for shop_id, anchors in list(groups.items())[:ANCHOR_SHOPS]:
            options = [anchors]
            for item in self.items[1:]:
                taken = [pick.product_id for picks in options for pick in picks]
                options.append(self.finder.all_of_a_page(item, shop_id, taken))
                if not options[-1]:
                    self._say_not_in(shop_id)
                    break
            else:
                return self._first_affordable(options)
            found = [picks[0] for picks in options if picks]
            self.partial = max(self.partial, found, key=len)
        return None

    def _affordable(self, picks: Sequence[Candidate]) -> bool:
        assert self.voucher is not None
        basket = [(pick.product_id, pick.price) for pick in picks]
        return affordable(self.desk, basket, self.voucher, names=self.style.names)

    def _from_one_shop(self) -> list[Candidate] | None:
        """All items from the shop of a candidate of the first item, shop after shop."""
        tried: dict[str, Candidate] = {}
        for anchor in self.finder.candidates(self.items[0], strict=True):
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
                found = self.finder.candidates(item, anchor.shop_id, taken, strict=True)
                match = next(found, None)
                if match is None:
                    self._say_not_in(anchor.shop_id)
                    break
                picks.append(match)
            else:
                return [self._with_shop_rival(anchor, list(tried.values())), *picks[1:]]
            self.partial = max(self.partial, picks, key=len)
        return None

    def _say_not_in(self, shop_id: str) -> None:
        self.desk.say(f"not in shop {shop_id}." if self.style.names else "not in that shop.")

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
            checked = "yes" in self.desk.thinking()
            self.desk.say("" if checked else f"{names} has everything that was asked for,")
            self.desk.say(f"so recommend {names}, which fits the request.")
        elif rivals:
            best = rivals[0]
            self.desk.say(f"so recommend {names} rather than {best.rival}, because {best.reason}.")
        else:
            self.desk.say(f"so recommend {names}, the only one that fits the request.")

    def _settle(self) -> list[str]:
        """The best that was seen, when nothing satisfies the request."""
        best = [self.finder.best.get(item) for item in self.items]
        ids = [pick.product_id if pick else "" for pick in best]
        if self.one_shop and (self.partial or best[0]):
            ids = self._filled_from_one_shop(
                self.partial or [pick for pick in best[:1] if pick], ids
            )
        known = [product_id for product_id in ids if product_id]
        if not known:
            self.desk.say("nothing found.")
            return []
        closest = f", {known[0]}" if self.style.names else ""
        self.desk.say(f"nothing matches in full, so recommend the closest one{closest}.")
        return [product_id or known[0] for product_id in ids]

    def _filled_from_one_shop(self, held: Sequence[Candidate], ids: Sequence[str]) -> list[str]:
        """The items held, and for each other one the closest that the same shop has."""
        filled = [pick.product_id for pick in held]
        for at in range(len(filled), len(ids)):
            try:
                closest = self.finder.closest_in_shop(self.items[at], held[0].shop_id, filled)
            except OutOfTurns:
                closest = ""
            filled.append(closest or ids[at])
        return filled

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
