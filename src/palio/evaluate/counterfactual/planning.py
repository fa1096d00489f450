"""Which data of a run are changed: those its thinking cites and its choice rests on, and controls.

A treatment makes a recommended product wrong by one datum. A placebo changes a datum of the same
products that nobody asked for and no thinking named. A copy gives a recommended product another
id, which only what reads the results can hand back.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

from palio.agents.reading import WantedItem
from palio.agents.scripted.verdicts import coverage, stems
from palio.evaluate.counterfactual.edits import (
    Change,
    edited_tools,
    option_change,
    options_of,
    price_change,
    title_change,
)
from palio.evaluate.counterfactual.told import Told
from palio.judging.words import fold, tokens
from palio.records import Product, Record, Trajectory
from palio.world.arguments import CATALOGUE_TOOLS
from palio.world.tools import Toolbox
from palio.world.world import World

Arm = Literal["treatment", "placebo", "copy"]
DEAR = 3
"""How many times the dearest row of a result a product costs that no budget has room for."""


class Intervention(Record, frozen=True, omit_defaults=False):
    """One change of what a run was shown.

    Attributes:
        kind: "attribute", "price", "title" or "id".
        cited: whether thinking after the first changed observation names the datum.
        at: place among the run's dispatches of the first observation that the changes touch; the
            run is forked there.
        rival: the product that the datum was exchanged with, "" when it was replaced.
    """

    arm: Arm
    kind: str
    product_id: str
    cited: bool
    at: int
    changes: tuple[Change, ...]
    rival: str = ""


class _Draft(NamedTuple):
    kind: str
    product: Product
    datum: str
    changes: tuple[Change, ...]
    rival: str = ""


class Planner:
    """Plans the interventions on runs in one world.

    Args:
        world: where the runs were recorded.
        most: treatments, and placebos, of one run.
    """

    def __init__(self, world: World, most: int = 3) -> None:
        self.world = world
        self.most = most
        self.products = world.catalogue.products
        values: dict[str, set[str]] = {}
        for product in self.products.values():
            for name, held in options_of(product).items():
                values.setdefault(name, set()).update(held)
        self._values = {name: tuple(sorted(held)) for name, held in values.items()}

    def plan(self, told: Told) -> tuple[Intervention, ...]:
        """Treatments, placebos and at most one copy; treatments of cited data if there are any."""
        found: dict[str, None] = dict.fromkeys(one for one in told.chosen if one in told.shown)
        places = [
            (told.chosen.index(one), self.products[one]) for one in found if one in self.products
        ]
        treated = [
            made
            for place, product in places
            for draft in self._treatments(told, told.item(place), product)
            if (made := self._placed(told, draft, "treatment")) is not None
        ]
        cited = [one for one in treated if one.cited]
        placebos = [
            made
            for place, product in places
            if (made := self._placebo(told, told.item(place), product)) is not None
        ]
        copies = [
            made
            for _, product in places[:1]
            if (made := self._placed(told, self._renamed(told, product), "copy")) is not None
        ]
        return (*(cited or treated)[: self.most], *placebos[: self.most], *copies)

    def _placed(self, told: Told, draft: _Draft, arm: Arm) -> Intervention | None:
        """The intervention where it first shows; None when it never does."""
        at = first_changed(told.run, edited_tools(self.world, draft.changes))
        if at is None:
            return None
        product_id = draft.product.product_id
        seq = told.run.dispatches[at].seq
        return Intervention(
            arm=arm,
            kind=draft.kind,
            product_id=product_id,
            cited=told.cites(product_id, draft.datum, seq) is not None,
            at=at,
            changes=draft.changes,
            rival=draft.rival,
        )

    def _treatments(self, told: Told, item: WantedItem, product: Product) -> Iterator[_Draft]:
        yield from self._attributes(told, item, product)
        price = self._price(told, item, product)
        if price is not None:
            yield price
        title = self._title(told, item, product)
        if title is not None:
            yield title

    def _attributes(self, told: Told, item: WantedItem, product: Product) -> Iterator[_Draft]:
        """Each wanted value that the product holds, exchanged with a rival's or replaced."""
        held = options_of(product)
        for name, value in item.values:
            for own_name, values in held.items():
                if name and fold(own_name) != fold(name):
                    continue
                own = next((one for one in values if stems(one) == stems(value)), None)
                if own is None:
                    continue
                rival, other = self._other_value(told, product, own_name, own)
                if other:
                    changes = [option_change(product, own_name, own, other)]
                    if rival is not None:
                        changes.append(option_change(rival, own_name, other, own))
                    name_of_rival = rival.product_id if rival else ""
                    yield _Draft("attribute", product, own, tuple(changes), name_of_rival)
                break

    def _other_value(
        self, told: Told, product: Product, name: str, own: str
    ) -> tuple[Product | None, str]:
        """A rejected product beside it with another value, named ones first; else any value."""
        for rival in self._rivals(told, product, viewed=True):
            for other in options_of(rival).get(name, ()):
                if not set(tokens(fold(other))) & told.asked:
                    return rival, other
        free = [
            value
            for value in self._values.get(name, ())
            if value != own and not set(tokens(fold(value))) & told.asked
        ]
        return None, self._drawn(told, product, name).choice(free) if free else ""

    def _rivals(self, told: Told, product: Product, *, viewed: bool) -> list[Product]:
        """Products that stood in one result with it and were not chosen; named ones first."""
        found: dict[str, None] = {}
        for event in told.run.dispatches:
            ids = told.rows.get(event.seq, ())
            if product.product_id in ids and (event.tool.startswith("view_")) == viewed:
                found.update(dict.fromkeys(ids))
        beside = [one for one in found if one not in told.chosen and one in self.products]
        beside.sort(key=lambda one: not told.names(one))
        return [self.products[one] for one in beside]

    def _price(self, told: Told, item: WantedItem, product: Product) -> _Draft | None:
        """A price that rules the product out: beyond the budget, the range, or a named rival's."""
        rivals = self._rivals(told, product, viewed=False)
        datum = price_change(product, product.price).before
        if told.wanted.voucher is not None:
            dear = DEAR * max(one.price for one in (product, *rivals))
            return _Draft("price", product, datum, (price_change(product, math.ceil(dear)),))
        bounded = item.low is not None or item.high is not None
        if bounded and not told.filtered(product.product_id):
            price = math.floor((item.low or 0) / 2) if item.high is None else item.high * 1.5
            return _Draft("price", product, datum, (price_change(product, math.ceil(price)),))
        said = told.cites(product.product_id, datum, -1)
        if said is None:
            return None
        for rival in rivals:
            if fold(rival.product_id) in said.names and rival.price > product.price:
                changes = (
                    price_change(product, rival.price),
                    price_change(rival, product.price),
                )
                return _Draft("price", product, datum, changes, rival.product_id)
        return None

    def _title(self, told: Told, item: WantedItem, product: Product) -> _Draft | None:
        """The title of a row beside it that holds fewer of the wanted words."""
        own = coverage(item.words, product.title)
        for rival in self._rivals(told, product, viewed=False):
            if coverage(item.words, rival.title) < own:
                held = stems(rival.title)
                telling = [word for word in product.title.split() if not stems(word) <= held]
                changes = (title_change(product, rival.title), title_change(rival, product.title))
                return _Draft("title", product, telling[0], changes, rival.product_id)
        return None

    def _placebo(self, told: Told, item: WantedItem, product: Product) -> Intervention | None:
        """A datum that nobody asked for and no thinking names, the product's own if it can be."""
        for owner in (product, *self._rivals(told, product, viewed=True)):
            for draft in self._idle(told, item, owner):
                made = self._placed(told, draft, "placebo")
                if made is not None and not made.cited:
                    return made
        return None

    def _idle(self, told: Told, item: WantedItem, product: Product) -> Iterator[_Draft]:
        wanted = {word for _, value in item.values for word in tokens(fold(value))}
        for name, values in options_of(product).items():
            words = {word for value in values for word in tokens(fold(value))}
            if words & (told.asked | wanted) or len(values) != 1:
                continue
            free = [
                value
                for value in self._values[name]
                if value != values[0] and not set(tokens(fold(value))) & told.asked
            ]
            if free:
                other = self._drawn(told, product, name).choice(free)
                changes = (option_change(product, name, values[0], other),)
                yield _Draft("attribute", product, values[0], changes)
        more = product.price + 1
        if told.wanted.voucher is None and (item.high is None or more <= item.high):
            change = price_change(product, more)
            yield _Draft("price", product, change.before, (change,))

    def _renamed(self, told: Told, product: Product) -> _Draft:
        """The product under an id of the same length that the catalogue does not have."""
        drawn = self._drawn(told, product, "id")
        size = max(4, len(product.product_id))
        while True:
            fresh = str(drawn.randrange(10 ** (size - 1), 10**size))
            if fresh not in self.products:
                break
        change = Change(
            product_id=product.product_id,
            field="product_id",
            before=product.product_id,
            after=fresh,
        )
        return _Draft("id", product, product.product_id, (change,))

    def _drawn(self, told: Told, product: Product, name: str) -> random.Random:
        return random.Random(f"{told.run.problem_id} {product.product_id} {name}")


def first_changed(run: Trajectory, edited: Toolbox) -> int | None:
    """Place among the dispatches of the first one whose result an edited world gives otherwise."""
    for place, event in enumerate(run.dispatches):
        if event.tool in CATALOGUE_TOOLS and event.error == "":
            reply = edited.call(event.tool, event.arguments)
            if reply.result != event.result:
                return place
    return None


def unfaithful(run: Trajectory, tools: Toolbox) -> int | None:
    """Seq of the first result that is not this world's answer; None when all are."""
    for event in run.dispatches:
        if event.tool not in CATALOGUE_TOOLS:
            continue
        if tools.call(event.tool, event.arguments).result != event.result:
            return event.seq
    return None
