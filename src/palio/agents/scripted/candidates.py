"""Where candidates come from: pages of results, titles that fit, wanted and seen side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import msgspec

from palio.agents.reading import WantedItem
from palio.agents.scripted.desk import Desk
from palio.agents.scripted.verdicts import (
    MISSING,
    Check,
    compare,
    coverage,
    missing_words,
    stems,
    verdict,
)
from palio.records import Record

PAGES = 5
FULL_PAGES = 2
"""Pages worth turning where a page holds ten results with long details."""
VIEWS = 5
"""Products viewed in one call."""
SLACK = 0.2
"""Full world: how far a title's word coverage may fall short of the first one's."""
SHOP_BAR = 0.4
"""Full world: word coverage that makes a product of a given shop the wanted one."""
LOOSE = 3
"""Words of a request that no title holds and that are looked for in the details."""

RANKED = "it ranks first"
Result = Literal["holds", "silent", "fails"]
"""All wanted values are there; none contradicts but one is not told; one is another."""


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


class Candidate(Record, frozen=True):
    """A search row that holds every wanted value, and the row that it was preferred to.

    Attributes:
        cover: share of the wanted words that its title holds, in [0, 1].
    """

    product_id: str
    shop_id: str
    price: float
    cover: float
    rival: str = ""
    reason: str = ""


class Sheet:
    """A page of results: rows, those whose title fits, the first that failed or fits as well."""

    def __init__(self, rows: list[dict[str, Any]], fits: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.fits = fits
        self.rival: tuple[str, str] | None = None
        self.equal: dict[str, Any] | None = None


class Finder:
    """Finds candidates for one item at a time and takes notes of what it sees.

    Attributes:
        best: item -> the row that came closest, for an answer when nothing satisfies.
        shown: how many rows the last search gave.
    """

    def __init__(self, desk: Desk, style: Style) -> None:
        self.desk = desk
        self.style = style
        self.best: dict[WantedItem, Candidate] = {}
        self.shown = 0

    def first_hit(self, item: WantedItem) -> str:
        """The first row of a search, unseen; "" when there is none."""
        rows = self._search(item, "", 1)
        return row_id(rows[0]) if rows else ""

    def closest_in_shop(self, item: WantedItem, shop_id: str, taken: Collection[str]) -> str:
        """The first row of a shop that is not taken, constraints set aside; "" when none is."""
        text = query_text(item, compact=self.desk.compact)
        self.desk.say(f"search {text}.")
        rows = self.desk.find(text, shop_id=shop_id)
        return next((row_id(row) for row in rows if row_id(row) not in taken), "")

    def candidates(
        self,
        item: WantedItem,
        shop_id: str = "",
        taken: Collection[str] = (),
        *,
        strict: bool = False,
    ) -> Iterator[Candidate]:
        """Candidates in rank order, page by page; `taken` ids are left out.

        Unless `strict`, rows that do not tell a wanted value come after those of their page that
        hold it: where details are long they are often incomplete.
        """
        for sheet in self._pages(item, shop_id, taken):
            yield from self._judged(item, sheet, strict=strict)

    def all_of_a_page(
        self,
        item: WantedItem,
        shop_id: str = "",
        taken: Collection[str] = (),
    ) -> list[Candidate]:
        """Every candidate of the first page that has one, in rank order, prices noted.

        Prices stand beside the verdicts: choosing the least number of one line can be learned,
        choosing it from rows two messages back cannot.
        """
        for sheet in self._pages(item, shop_id, taken):
            found = self._all_judged(item, sheet, strict=bool(shop_id))
            if found:
                return found
        return []

    def _pages(self, item: WantedItem, shop_id: str, taken: Collection[str]) -> Iterator[Sheet]:
        """Result pages that hold rows whose title fits, until a page says there are no more."""
        bar = -1.0
        for page in range(1, (PAGES if self.desk.compact else FULL_PAGES) + 1):
            rows = self._search(item, shop_id, page)
            covers = [_cover(item, row) for row in rows]
            if bar < 0:
                bar = self._bar(covers, shop_id)
            fits = [
                row
                for row, cover in zip(rows, covers, strict=True)
                if cover >= bar and row_id(row) not in taken
            ]
            if not fits:
                return
            self.best.setdefault(item, _candidate(item, fits[0]))
            yield Sheet(rows, fits)
            full = 5 if self.desk.compact else 10
            if len(rows) < full or len(fits) < len(rows):
                return
            self.desk.say("next page.")

    def _search(self, item: WantedItem, shop_id: str, page: int) -> list[dict[str, Any]]:
        text = query_text(item, compact=self.desk.compact)
        price = price_text(item) if self.style.filters else ""
        service = ",".join(item.services) if self.style.filters else ""
        if page == 1:
            self.desk.say(f"search {text}.")
        rows = self.desk.find(text, price=price, service=service, shop_id=shop_id, page=page)
        if not (rows or page > 1 or shop_id) and (price or service):
            self.desk.say("no results, search without filters.")
            rows = self.desk.find(text)
        self.shown = len(rows)
        return rows

    def _bar(self, covers: Sequence[float], shop_id: str) -> float:
        """The word coverage that a title must reach, from the first page's coverages.

        Short titles name brand, line and type and must fit exactly. Long ones are believed in the
        order of the search, which weighs rare words; one that holds far more words still counts.
        """
        best = max(covers, default=0.0)
        if self.desk.compact:
            return 1.0 if shop_id else best
        if shop_id:
            return SHOP_BAR
        return max(covers[0] if covers else 0.0, best - 2 * SLACK) - SLACK

    def _judged(self, item: WantedItem, sheet: Sheet, *, strict: bool) -> Iterator[Candidate]:
        """Rows of a sheet that hold every wanted value, in rank order, with verdicts as notes."""
        for start in range(0, len(sheet.fits), VIEWS):
            rows = sheet.fits[start : start + VIEWS]
            checks = self._look(item, rows)
            silent = []
            for place, row in enumerate(rows):
                result = self._judge(item, row, checks[place], sheet)
                if result == "silent":
                    silent.append(row)
                if result != "holds":
                    continue
                if self.style.weighs and not sheet.rival and place + 1 < len(rows):
                    self._judge_rival(item, rows[place + 1], checks[place + 1], sheet)
                yield self._with_rival(_candidate(item, row), item, sheet)
            for row in () if strict else silent:
                yield self._with_rival(_candidate(item, row), item, sheet)

    def _all_judged(self, item: WantedItem, sheet: Sheet, *, strict: bool) -> list[Candidate]:
        for start in range(0, len(sheet.fits), VIEWS):
            rows = sheet.fits[start : start + VIEWS]
            by_result: dict[str, list[Candidate]] = {}
            for row, checks in zip(rows, self._look(item, rows), strict=True):
                result = self._judge(item, row, checks, sheet, priced=True)
                by_result.setdefault(result, []).append(_candidate(item, row))
            silent = [] if strict else by_result.get("silent", [])
            found = by_result.get("holds") or silent
            if found:
                return [self._with_dearer(pick, found, item, sheet) for pick in found]
        return []

    def _look(self, item: WantedItem, rows: Sequence[dict[str, Any]]) -> list[list[Check]]:
        """Checks of each row; products are viewed only if there is something to check."""
        loose = self._loose_words(item, rows)
        if not item.values and not loose:
            return [[] for _ in rows]
        ids = [row_id(row) for row in rows]
        self.desk.say(f"{' '.join(ids)} fit." if self.style.names else f"{len(ids)} results.")
        views = self.desk.view(ids)
        if self.style.names:
            wanted = [*(value for _, value in item.values), *loose]
            self.desk.say(f"need {' '.join(wanted)}.")
        pairs = [*item.values, *(("", word) for word in loose)]
        return [self._checks(pairs, row, views.get(row_id(row), {})) for row in rows]

    def _checks(
        self, pairs: Sequence[tuple[str, str]], row: dict[str, Any], view: dict[str, Any]
    ) -> list[Check]:
        """Checks of one row; where details are long, only a value with a name can rule it out."""
        checks = compare(pairs, view, title="" if self.desk.compact else _title(row))
        if self.desk.compact:
            return checks
        named = zip(pairs, checks, strict=True)
        return [check._replace(loose=not name) for (name, _), check in named]

    def _loose_words(self, item: WantedItem, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Words that the first title lacks, where observations are long enough to hold them."""
        if self.desk.compact or not rows:
            return []
        return missing_words(item.words, _title(rows[0]))[:LOOSE]

    def _judge(
        self,
        item: WantedItem,
        row: dict[str, Any],
        checks: Sequence[Check],
        sheet: Sheet,
        *,
        priced: bool = False,
    ) -> Result:
        """The verdict on a row; says it, and remembers the first row that failed."""
        failed = [check for check in checks if not check.ok and not check.loose]
        price = f"{money(_price(row))} {row_id(row)}" if priced and not failed else ""
        if (checks or price) and self.style.names and (self.style.weighs or not failed):
            self.desk.say(verdict(row_id(row), checks, price))
        if not failed:
            return "holds"
        sheet.rival = sheet.rival or (row_id(row), f"it is {failed[0].wanted}")
        self.best.setdefault(item, _candidate(item, row))
        said = any(check.seen != MISSING for check in failed)
        return "fails" if said or self.desk.compact else "silent"

    def _judge_rival(
        self, item: WantedItem, row: dict[str, Any], checks: Sequence[Check], sheet: Sheet
    ) -> None:
        """The next row, judged for comparison only."""
        if not checks:
            return
        if self._judge(item, row, checks, sheet) == "holds":
            sheet.equal = row

    def _with_rival(self, pick: Candidate, item: WantedItem, sheet: Sheet) -> Candidate:
        """The pick with the row it beat: one that failed, else one whose title is worse."""
        if not self.style.weighs:
            return pick
        if sheet.rival:
            return msgspec.structs.replace(pick, rival=sheet.rival[0], reason=sheet.rival[1])
        others = [row for row in sheet.rows if row_id(row) != pick.product_id]
        for row in () if sheet.equal else others:
            if _cover(item, row) < pick.cover:
                word = missing_words(item.words, _title(row))[0]
                return msgspec.structs.replace(pick, rival=row_id(row), reason=f"it is {word}")
        if not others:
            return pick
        rival = sheet.equal or others[0]
        cheaper = pick.price < _price(rival)
        reason = f"{money(pick.price)} is cheaper" if cheaper else RANKED
        return msgspec.structs.replace(pick, rival=row_id(rival), reason=reason)

    def _with_dearer(
        self, pick: Candidate, found: Sequence[Candidate], item: WantedItem, sheet: Sheet
    ) -> Candidate:
        dearer = next((other for other in found if other.price > pick.price), None)
        if dearer is None or not self.style.weighs:
            return self._with_rival(pick, item, sheet)
        reason = f"{money(pick.price)} is cheaper"
        return msgspec.structs.replace(pick, rival=dearer.product_id, reason=reason)


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


def row_id(row: dict[str, Any]) -> str:
    """The product id of a row."""
    return str(row.get("product_id", ""))


def _title(row: dict[str, Any]) -> str:
    return str(row.get("title", ""))


def _cover(item: WantedItem, row: dict[str, Any]) -> float:
    return coverage(item.words, _title(row))


def _candidate(item: WantedItem, row: dict[str, Any]) -> Candidate:
    return Candidate(
        product_id=row_id(row),
        shop_id=str(row.get("shop_id", "")),
        price=_price(row),
        cover=_cover(item, row),
    )


def _price(row: dict[str, Any]) -> float:
    price = row.get("price")
    return float(price) if isinstance(price, int | float) else 0.0
