"""Which seen products a sentence speaks of: by id, title, brand, shop, or place in a list."""

from __future__ import annotations

from palio.judging.seen import Seen
from palio.judging.words import Lexicon

MAX_NAMED = 16
"""Candidates of one sentence, and data of one candidate, that are looked at: a list of fifty ids
is a list, not a comparison, and the cost must stay linear in the thinking."""


class Namer:
    """Reads the sentences of one thought in their order; what it has resolved stays so.

    Args:
        seen: what the tools had shown.
        words: the word lists.
    """

    def __init__(self, seen: Seen, words: Lexicon) -> None:
        self._seen = seen
        self._words = words
        self._order: dict[str, None] = {}
        self._shops: dict[str, str] = {}
        self._places: dict[int, str] = {}

    def candidates(self, tokens: list[str]) -> list[str]:
        """Ids of the seen products that a sentence names, in its order.

        By id, by two neighbouring words of a title that no other seen product has, or by the
        brand or first title word where one product alone has it; by its shop, where the sentence
        has a datum of one product of that shop and denies nothing of the shop; by its place among
        the products that the thought has named, or in a result ("the second row").
        """
        found: dict[str, None] = {}
        previous = ""
        seen = self._seen
        for at, token in enumerate(tokens):
            if token in seen.products:
                found[token] = None
            elif previous == "the" and token in self._words.positions:
                self._add(found, self._at_position(at, tokens))
            if token in seen.owners:  # words of titles, brands and shops are
                self._by_datum(token, previous, tokens, found)
            previous = token
            if len(found) >= MAX_NAMED:
                break
        if len(self._order) < MAX_NAMED:
            self._order.update(found)
        return list(found)

    def _by_datum(
        self, token: str, previous: str, tokens: list[str], found: dict[str, None]
    ) -> None:
        seen = self._seen
        owners = seen.pairs.get((previous, token))
        if owners is not None and len(owners) == 1 and (seen.new(token) or seen.new(previous)):
            found[next(iter(owners))] = None
        heads = seen.heads.get(token)
        if heads is not None and len(heads) == 1 and len(token) > 2 and seen.new(token):
            found[next(iter(heads))] = None
        if token in seen.shops and seen.new(token) and self._words.negative.isdisjoint(tokens):
            self._add(found, self._of_shop(token, tokens, found))

    def _add(self, found: dict[str, None], product_id: str) -> None:
        if product_id:
            found[product_id] = None

    def _of_shop(self, shop: str, tokens: list[str], found: dict[str, None]) -> str:
        """The one product of a shop that the sentence is about; "" where that stays open."""
        products = self._seen.owners.get(shop, set())
        if not products.isdisjoint(found) or not products.isdisjoint(tokens):
            return ""
        owners = self._seen.owners
        told = [
            products & owners[token] for token in tokens if token != shop and token in owners
        ] + [products]
        for some in told:
            if len(some) == 1:
                self._shops[shop] = next(iter(some))
                break
        return self._shops.get(shop, "")

    def _at_position(self, at: int, tokens: list[str]) -> str:
        """What "the second" or "the second row" is; "" where that is nothing."""
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        if following in self._words.no_position:
            return ""
        place = self._words.positions[tokens[at]]
        named = list(self._order)
        if place in self._places:
            return self._places[place]
        if len(named) > 1 or following not in self._words.row_nouns:
            return named[place - 1] if 1 < len(named) >= place else ""
        there = [rows[place - 1] for rows in reversed(self._seen.lists) if len(rows) >= place]
        owners = self._seen.owners
        for product_id in there:
            if any(product_id in owners.get(token, ()) for token in tokens[at:]):
                self._places[place] = product_id
                return product_id
        return ""
