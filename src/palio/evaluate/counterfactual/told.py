"""What a run was shown and what its thinking named, by product."""

from __future__ import annotations

from typing import NamedTuple

from palio.agents.reading import Wanted, WantedItem, read_request
from palio.agents.scripted.conversation import read_rows
from palio.judging.answers import answer_ids
from palio.judging.thinking import thinking_text
from palio.judging.words import fold, sentences, tokens
from palio.records import InferenceEvent, Trajectory
from palio.records.trajectory import DispatchEvent
from palio.world.arguments import CATALOGUE_TOOLS, canonical_arguments


class Said(NamedTuple):
    """One sentence of thinking.

    Attributes:
        seq: place of its completion in the record.
        words: its tokens.
        names: ids of shown products that it names.
    """

    seq: int
    words: frozenset[str]
    names: frozenset[str]


class Told:
    """A recorded run, read once for all questions about its data.

    Attributes:
        chosen: ids that were recommended, in the order of the request.
        wanted: the request as read.
        shown: product id -> seq of the dispatches whose results have a row of it.
        said: sentences of thinking in order.
    """

    def __init__(self, run: Trajectory) -> None:
        self.run = run
        self.chosen = tuple(answer_ids(run.answer, "strict"))
        self.wanted: Wanted = read_request(run.query)
        self.asked = frozenset(tokens(fold(run.query)))
        self.shown: dict[str, list[int]] = {}
        self.rows: dict[int, tuple[str, ...]] = {}
        for event in run.dispatches:
            if event.tool in CATALOGUE_TOOLS:
                ids = shown_ids(event)
                self.rows[event.seq] = ids
                for product_id in ids:
                    self.shown.setdefault(product_id, []).append(event.seq)
        self.said = tuple(
            one
            for event in run.inferences
            for one in _sentences(event, frozenset(map(fold, self.shown)))
        )

    def item(self, place: int) -> WantedItem:
        """What was wanted where the answer has its `place`; all of it when the two disagree."""
        items = self.wanted.items
        if len(items) == len(self.chosen):
            return items[place]
        return WantedItem(
            words=tuple(word for item in items for word in item.words),
            values=tuple(pair for item in items for pair in item.values),
        )

    def cites(self, product_id: str, text: str, after: int) -> Said | None:
        """The first sentence after event `after` that gives a product this datum, None if none.

        It names the product, or no product at all.
        """
        datum = frozenset(tokens(fold(text)))
        own = fold(product_id)
        for one in self.said:
            about = own in one.names or not one.names
            if one.seq > after and about and datum and datum <= one.words:
                return one
        return None

    def names(self, product_id: str) -> bool:
        """Whether any thinking names the product."""
        return any(fold(product_id) in one.names for one in self.said)

    def filtered(self, product_id: str) -> bool:
        """Whether every search that showed a product was filtered by price."""
        searches = [
            event
            for event in self.run.dispatches
            if event.seq in self.shown.get(product_id, ()) and event.tool.startswith("find_product")
        ]
        return bool(searches) and all(
            canonical_arguments(event.tool, event.arguments).get("price") for event in searches
        )


def shown_ids(event: DispatchEvent) -> tuple[str, ...]:
    """Ids of the rows of a result, in its order."""
    found: dict[str, None] = {}
    for row in read_rows(event.result):
        if "product_id" in row:
            found[str(row["product_id"])] = None
    return tuple(found)


def _sentences(event: InferenceEvent, shown: frozenset[str]) -> list[Said]:
    if event.completion is None:
        return []
    folded = fold(thinking_text(event.completion))
    found = []
    for start, end in sentences(folded):
        words = frozenset(tokens(folded[start:end]))
        found.append(Said(event.seq, words, words & shown))
    return found
