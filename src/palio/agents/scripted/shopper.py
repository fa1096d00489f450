"""The shopping strategies: what a careful, a terse, a sloppy and a hasty shopper do and think.

Thinking is terse on purpose. A model of one or two million parameters must be able to learn it, and
what made one learn was a verdict that puts wanted and seen side by side (`6093 blue beige no`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import msgspec

from palio.agents.reading import Wanted, WantedItem
from palio.agents.scripted.basket import affordable
from palio.agents.scripted.desk import Desk, OutOfTurns
from palio.agents.scripted.verdicts import Check, compare, coverage, stems, verdict
from palio.records import Record

PAGES = 5
VIEWS = 5
"""Products viewed in one call."""
ANCHOR_SHOPS = 6
"""Shops that are tried for the other items before settling for less."""
BASKETS = 3
"""Baskets whose voucher is computed before settling for the last."""
SLACK = 0.2
"""Full world: how far a title may fall short of the best title's word coverage."""


class Style(Record, frozen=True):
    """How a shopper works.

    Attributes:
        weighs: puts verdicts on every candidate it looks at and says why one beats another.
        looks: checks wanted values against product details at all.
        names: names what it saw; without it thinking stays general.
        drops: probability of dropping each constraint before starting.
        filters: passes price and service to the search.
    """

    weighs: bool = False
    looks: bool = True
    names: bool = True
    drops: float = 0.0
    filters: bool = True


STYLES = {
    "scripted-careful": Style(weighs=True),
    "scripted-terse": Style(),
    "scripted-sloppy": Style(names=False, drops=0.4),
    "scripted-hasty": Style(looks=False, names=False, filters=False),
}


class Candidate(Record, frozen=True):
    """A search row that holds every wanted value, and the row that it was preferred to."""

    product_id: str
    shop_id: str
    price: float
    rival: str = ""
    reason: str = ""


class Shopper:
    """One strategy over one desk; `solve` ends in an answer or in the model's next turn."""

    def __init__(self, desk: Desk, wanted: Wanted, style: Style, rng: random.Random) -> None:
        self.desk = desk
        self.style = style
        items = wanted.items or (WantedItem(words=tuple(desk.conversation.request.split())),)
        self.items = tuple(_dropped(item, style.drops, rng) for item in items)
        self.wanted = wanted
        self.same_shop = wanted.same_shop or (
            wanted.voucher is not None and wanted.voucher.voucher_type == "shop"
        )
        self.fallback: dict[int, str] = {}

    def solve(self) -> list[str]:
        """Product ids in the order of the request; [] when nothing was found."""
        try:
            if not self.style.looks:
                return self._first_hits()
            picks = self._basket()
        except OutOfTurns:
            picks = None
        if picks is None:
            return self._settle()
        self._say_pick(picks)
        return [pick.product_id for pick in picks]

    def _basket(self) -> list[Candidate] | None:
        voucher = self.wanted.voucher
        if self.same_shop and len(self.items) > 1:
            picks = self._from_one_shop()
            if picks and voucher:
                affordable(self.desk, [(pick.product_id, pick.price) for pick in picks], voucher)
            return picks
        if voucher is None:
            found = [next(self._candidates(at), None) for at in range(len(self.items))]
            return [pick for pick in found if pick] if all(found) else None
        options = [self._cheapest_first(at) for at in range(len(self.items))]
        if not all(options):
            return None
        baskets = sorted(product(*options), key=lambda picks: sum(pick.price for pick in picks))
        for basket in islice(baskets, BASKETS):
            if affordable(self.desk, [(pick.product_id, pick.price) for pick in basket], voucher):
                return list(basket)
        return list(baskets[0])

    def _from_one_shop(self) -> list[Candidate] | None:
        tried: list[str] = []
        for anchor in self._candidates(0):
            if anchor.shop_id in tried or len(tried) >= ANCHOR_SHOPS:
                continue
            tried.append(anchor.shop_id)
            if self.style.names:
                self.desk.say(f"{anchor.product_id} shop {anchor.shop_id}.")
            picks = [anchor]
            for at in range(1, len(self.items)):
                match = next(self._candidates(at, anchor.shop_id), None)
                if match is None:
                    self.desk.say(f"not in shop {anchor.shop_id}.")
                    break
                picks.append(match)
            else:
                return picks
            for at, pick in enumerate(picks):
                self.fallback[at] = pick.product_id
        return None

    def _cheapest_first(self, at: int) -> list[Candidate]:
        """All candidates of the first page that has one, by price."""
        found: list[Candidate] = []
        for sheet in self._pages(at):
            found = list(self._judged(at, sheet, every=True))
            if found:
                break
        # prices stand beside the verdicts: choosing the least of numbers in one line can be
        # learned, choosing it from rows that stand two messages back cannot
        return sorted(found, key=lambda pick: pick.price)

    def _candidates(self, at: int, shop_id: str = "") -> Iterator[Candidate]:
        for sheet in self._pages(at, shop_id):
            yield from self._judged(at, sheet)

    def _pages(self, at: int, shop_id: str = "") -> Iterator[Sheet]:
        """Result pages that hold rows whose title fits, until a page says there are no more."""
        item, bar = self.items[at], -1.0
        for page in range(1, PAGES + 1):
            rows = self._search(item, shop_id, page)
            covers = [coverage(item.words, str(row.get("title", ""))) for row in rows]
            if bar < 0:
                bar = self._bar(covers, shop_id)
            fits = [row for row, cover in zip(rows, covers, strict=True) if cover >= bar]
            if not fits:
                return
            self.fallback.setdefault(at, str(fits[0].get("product_id", "")))
            yield Sheet(rows, fits)
            full = 5 if self.desk.compact else 10
            if len(rows) < full or (self.desk.compact and len(fits) < len(rows)):
                return
            self.desk.say("next page.")

    def _search(self, item: WantedItem, shop_id: str, page: int) -> list[dict[str, Any]]:
        text = query_text(item, compact=self.desk.compact)
        price = price_text(item) if self.style.filters else ""
        service = ",".join(item.services) if self.style.filters else ""
        if page == 1:
            self.desk.say(f"search {text}.")
        rows = self.desk.find(text, price=price, service=service, shop_id=shop_id, page=page)
        if rows or page > 1 or shop_id or not (price or service):
            return rows
        self.desk.say("no results, search without filters.")
        return self.desk.find(text)

    def _bar(self, covers: Sequence[float], shop_id: str) -> float:
        """The word coverage that a title must reach, from the first page's coverages."""
        best = max(covers, default=0.0)
        if self.desk.compact:
            return 1.0 if shop_id else best
        return max(best - SLACK, 0.34)

    def _judged(self, at: int, sheet: Sheet, *, every: bool = False) -> Iterator[Candidate]:
        """Rows of a sheet that hold every wanted value, in rank order, with verdicts as notes.

        With `every`, all rows are judged before the first is given out.
        """
        item = self.items[at]
        for start in range(0, len(sheet.fits), VIEWS):
            rows = sheet.fits[start : start + VIEWS]
            checks = self._look(item, rows)
            passed = []
            for place, row in enumerate(rows):
                product_id = str(row.get("product_id"))
                good = all(check.ok for check in checks[place])
                price = money(_price(row)) if every and good else ""
                self._say_verdict(product_id, checks[place], good, price)
                if not good:
                    sheet.rival = sheet.rival or (product_id, _failed(checks[place]))
                    continue
                pick = _candidate(row)
                if self.style.weighs and not every:
                    pick = self._weighed(pick, item, sheet, rows[place + 1 :], checks[place + 1 :])
                if every:
                    passed.append(pick)
                else:
                    yield pick
            yield from self._compared(item, sheet, passed)

    def _look(self, item: WantedItem, rows: Sequence[dict[str, Any]]) -> list[list[Check]]:
        """Checks of each row; products are viewed only if there is a value to check."""
        if not item.values:
            return [[] for _ in rows]
        ids = [str(row.get("product_id")) for row in rows]
        self.desk.say(f"{' '.join(ids)} fit." if self.style.names else f"{len(ids)} results.")
        views = self.desk.view(ids)
        if self.style.names:
            self.desk.say(f"need {' '.join(value for _, value in item.values)}.")
        return [compare(item.values, views.get(product_id, {})) for product_id in ids]

    def _say_verdict(
        self, product_id: str, checks: Sequence[Check], good: bool, price: str = ""
    ) -> None:
        if (checks or price) and self.style.names and (self.style.weighs or good):
            self.desk.say(verdict(product_id, checks, price))

    def _weighed(
        self,
        pick: Candidate,
        item: WantedItem,
        sheet: Sheet,
        rows: Sequence[dict[str, Any]],
        checks: Sequence[list[Check]],
    ) -> Candidate:
        """The pick with a rival: one that failed before, else the next row, else a worse title."""
        if not sheet.rival and rows and item.values:
            rival = str(rows[0].get("product_id"))
            good = all(check.ok for check in checks[0])
            self._say_verdict(rival, checks[0], good)
            sheet.rival = (rival, "both fit, first" if good else _failed(checks[0]))
        return msgspec.structs.replace(pick, **self._rivalry(pick, item, sheet))

    def _compared(
        self, item: WantedItem, sheet: Sheet, passed: Sequence[Candidate]
    ) -> Iterator[Candidate]:
        """Candidates of a voucher basket, the cheapest with a dearer one as its rival."""
        if not passed:
            return
        cheapest = min(passed, key=lambda pick: pick.price)
        dearer = next((pick for pick in passed if pick.price > cheapest.price), None)
        for pick in passed:
            if pick is not cheapest or not self.style.weighs:
                yield pick
            elif dearer is not None:
                yield msgspec.structs.replace(
                    pick, rival=dearer.product_id, reason=f"{money(pick.price)} is cheaper"
                )
            else:
                yield msgspec.structs.replace(pick, **self._rivalry(pick, item, sheet))

    def _rivalry(self, pick: Candidate, item: WantedItem, sheet: Sheet) -> dict[str, str]:
        if sheet.rival:
            return {"rival": sheet.rival[0], "reason": sheet.rival[1]}
        for row in sheet.rows:
            missing = [word for word in item.words if not stems(word) <= stems(str(row["title"]))]
            if missing and str(row.get("product_id")) != pick.product_id:
                return {"rival": str(row.get("product_id")), "reason": f"it is {missing[0]}"}
        others = [row for row in sheet.fits if str(row.get("product_id")) != pick.product_id]
        if not others:
            return {}
        return {"rival": str(others[0].get("product_id")), "reason": "both fit, first"}

    def _say_pick(self, picks: Sequence[Candidate]) -> None:
        if not self.style.names:
            self.desk.say("looks right.")
            return
        names = " and ".join(pick.product_id for pick in picks)
        rivals = [pick for pick in picks if pick.rival and pick.rival not in names]
        if self.style.weighs and rivals:
            self.desk.say(f"pick {names} over {rivals[0].rival}, {rivals[0].reason}.")
        else:
            self.desk.say(f"pick {names}.")

    def _settle(self) -> list[str]:
        """The best that was seen, when nothing satisfies the request."""
        ids = [self.fallback.get(at, "") for at in range(len(self.items))]
        known = [product_id for product_id in ids if product_id]
        if not known:
            self.desk.say("nothing found.")
            return []
        self.desk.say(f"no full match, best {known[0]}." if self.style.names else "close enough.")
        return [product_id or known[0] for product_id in ids]

    def _first_hits(self) -> list[str]:
        """The first row of each search, unseen."""
        ids: list[str] = []
        for item in self.items:
            rows = self._search(item, "", 1)
            ids.extend(str(row.get("product_id")) for row in rows[:1])
        self.desk.say("take the first.")
        return ids


class Sheet:
    """One page of results: its rows, those whose title fits, and the first row that failed."""

    def __init__(self, rows: list[dict[str, Any]], fits: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.fits = fits
        self.rival: tuple[str, str] | None = None


def query_text(item: WantedItem, *, compact: bool) -> str:
    """Search words of an item; wanted values join them where observations are long."""
    words = list(item.words)
    if not compact:
        held = stems(" ".join(words))
        words.extend(value for _, value in item.values if not stems(value) <= held)
    return " ".join(words)


def price_text(item: WantedItem) -> str:
    """The price filter ``low-high``; an open side is empty, no bound at all gives ""."""
    if item.low is None and item.high is None:
        return ""
    low = "" if item.low is None else money(item.low)
    return f"{low}-{'' if item.high is None else money(item.high)}"


def money(amount: float) -> str:
    """An amount as the tools print it: integral ones without a fraction."""
    return str(int(amount)) if float(amount).is_integer() else str(amount)


def _candidate(row: dict[str, Any]) -> Candidate:
    return Candidate(
        product_id=str(row.get("product_id")),
        shop_id=str(row.get("shop_id", "")),
        price=_price(row),
    )


def _price(row: dict[str, Any]) -> float:
    price = row.get("price")
    return float(price) if isinstance(price, int | float) else 0.0


def _failed(checks: Sequence[Check]) -> str:
    return f"it is {next(check.wanted for check in checks if not check.ok)}"


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
