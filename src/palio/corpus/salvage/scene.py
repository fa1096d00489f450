"""What a moment shows, put side by side: products seen, what each view said of what was wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from palio.agents.reading import Wanted, WantedItem, read_request
from palio.agents.scripted.candidates import LOOSE, SLACK, money, row_id
from palio.agents.scripted.conversation import read_rows
from palio.agents.scripted.verdicts import Check, compare, coverage, missing_words, stems
from palio.corpus.salvage.moment import Moment, Step

SEARCHES = frozenset({"find_product", "find_products_in_same_shop"})
VIEW = "view_product_information"


class Look(NamedTuple):
    """A viewed product beside what was wanted of it.

    Attributes:
        said: whether the turn after the view named it.
    """

    product_id: str
    checks: tuple[Check, ...]
    said: bool

    @property
    def holds(self) -> bool:
        """Whether nothing that counts speaks against it."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that rule it out."""
        return tuple(check for check in self.checks if not check.ok and not check.loose)


class Scene:
    """A reading of a moment; a pure function of it.

    Attributes:
        wanted: the request as read.
        rows: product id -> its first search row.
        looks: product id -> its latest look.
        searches: the searches so far with their rows.
    """

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.wanted: Wanted = read_request(moment.query)
        self.items = self.wanted.items or (WantedItem(words=tuple(moment.query.split())),)
        self.rows: dict[str, dict[str, Any]] = {}
        self.ranks: dict[str, tuple[int, int]] = {}
        self.looks: dict[str, Look] = {}
        self.searches: list[tuple[Step, list[dict[str, Any]]]] = []
        for step in moment.steps:
            self._take(step)

    def _take(self, step: Step) -> None:
        rows = read_rows(step.result)
        if step.tool in SEARCHES:
            self.searches.append((step, rows))
            for rank, row in enumerate(rows):
                self.rows.setdefault(row_id(row), row)
                self.ranks.setdefault(row_id(row), (len(self.searches), rank))
        elif step.tool == VIEW:
            self.looks |= {look.product_id: look for look in self.look(rows)}

    def look(self, views: Sequence[dict[str, Any]]) -> list[Look]:
        """Looks at viewed rows in order: those up to the first that holds are said, and a rival."""
        item = self.item()
        found: list[Look] = []
        held = 0
        for view in views:
            checks = tuple(self.checks(item, row_id(view), view))
            holds = not any(not check.ok and not check.loose for check in checks)
            rival_wanted = held == 1 and len(found) == 1
            found.append(Look(row_id(view), checks, bool(checks) and (not held or rival_wanted)))
            held += holds
        return found

    def item(self, query: str | None = None) -> WantedItem:
        """The item that a search was for, the last one by default: most words and values shared."""
        if query is None:
            last = self.searches[-1][0].arguments if self.searches else {}
            query = str(last.get("q", ""))
        asked = stems(query)

        def shared(item: WantedItem) -> int:
            own = stems(" ".join([*item.words, *(value for _, value in item.values)]))
            return len(own & asked)

        return max(self.items, key=shared)

    def checks(self, item: WantedItem, product_id: str, view: dict[str, Any]) -> list[Check]:
        """What was wanted beside what is seen; only what a filter has not already seen to."""
        row = self.rows.get(product_id, {})
        title = str(row.get("title", ""))
        found = self._title_check(item, row, title)
        if self.moment.compact:
            return [*found, *compare(item.values, view), *self._price_check(item, row)]
        loose = missing_words(item.words, title)[:LOOSE]
        pairs = [*item.values, *(("", word) for word in loose)]
        named = zip(pairs, compare(pairs, view, title=title), strict=True)
        found += [check._replace(loose=not name) for (name, _), check in named]
        return [*found, *self._price_check(item, row)]

    def _title_check(self, item: WantedItem, row: dict[str, Any], title: str) -> list[Check]:
        """The first wanted word that a compact title lacks; long titles are not held to that."""
        lacking = missing_words(item.words, title) if row and self.moment.compact else []
        return [Check(lacking[0], "none", False)] if lacking else []

    def _price_check(self, item: WantedItem, row: dict[str, Any]) -> list[Check]:
        price = row.get("price")
        if not isinstance(price, int | float) or item.low is item.high is None:
            return []
        low, high = item.low, item.high
        holds = (low is None or price >= low) and (high is None or price <= high)
        filtered = self.searches and self.searches[-1][0].arguments.get("price")
        if filtered and holds:
            return []  # the filter has seen to it; a wrong filter has not
        if low is not None and high is not None:
            wanted = f"{money(low)} to {money(high)}"
        else:
            wanted = f"under {money(high)}" if high is not None else f"over {money(low or 0.0)}"
        return [Check(wanted, money(float(price)), holds)]

    def fitting(self, ids: Sequence[str]) -> list[str]:
        """Of ids about to be viewed, those whose title fits as well as any of the last search."""
        rows = self.searches[-1][1] if self.searches else []
        item = self.item()
        covers = {row_id(row): coverage(item.words, str(row.get("title", ""))) for row in rows}
        best = max(covers.values(), default=0.0)
        bar = best if self.moment.compact else best - 2 * SLACK
        return [one for one in ids if best > 0 and covers.get(one, -1.0) >= bar]

    def price(self, product_id: str) -> float | None:
        """The price that a search row showed."""
        price = self.rows.get(product_id, {}).get("price")
        return float(price) if isinstance(price, int | float) else None

    def shops(self, ids: Sequence[str]) -> list[str]:
        """The shops of products, as far as rows showed them."""
        found = [str(self.rows.get(one, {}).get("shop_id", "")) for one in ids]
        return [shop for shop in found if shop]

    def lacks(self, product_id: str, item: WantedItem) -> list[str]:
        """Wanted words that a seen product's title does not hold."""
        return missing_words(item.words, str(self.rows.get(product_id, {}).get("title", "")))
