"""Whether a sentence says something of what came back as a whole, without any datum of it."""

from __future__ import annotations

import itertools

from palio.judging.seen import Seen
from palio.judging.words import Lexicon

PREDICATE = 6
"""Words behind "the results" among which stands what is said of them."""
NEAR = 3
"""Words before a noun among which stand its determiner and preposition."""


def refers(tokens: list[str], seen: Seen, words: Lexicon) -> bool:
    """Whether a sentence states something of the results of earlier calls.

    It names them with a determiner ("these results", "this list", "the products found") and says
    something of them, of what stands in them or of a part of them; or it says how much a search
    gave. A plan or supposition ("let me look at the results"), a claim to have studied them and
    the customer's own list say nothing; a number of rows that no result had refutes it.
    """
    for at, token in enumerate(tokens):
        if token not in words.reference:
            continue
        if token in words.sources and _gave(at, tokens, words):
            return True
        if not _results(at, tokens, words) or seen.asked(token):
            continue
        if words.determiners.isdisjoint(tokens[max(0, at - NEAR) : at]):
            continue
        if not words.plans.isdisjoint(tokens[:at]):
            return False
        if not _counted_wrong(tokens[at - 1], seen, words) and _says(at, tokens, words):
            return True
    return False


def _results(at: int, tokens: list[str], words: Lexicon) -> bool:
    """Whether the noun at a place is a set of results."""
    token = tokens[at]
    if token in words.set_nouns:
        return True
    around = tokens[max(0, at - NEAR) : at + NEAR + 2]
    if token in words.soft_nouns:
        return words.wishes.isdisjoint(around)
    if token in words.weak_nouns:
        return not words.came.isdisjoint(around) and words.wishes.isdisjoint(around)
    return False


def _says(at: int, tokens: list[str], words: Lexicon) -> bool:
    """Of them, of what stands in them, or of a part of them ("one of them")."""
    if not words.states.isdisjoint(tokens[at + 1 : at + 1 + PREDICATE]):
        return True
    if not words.within.isdisjoint(tokens[max(0, at - NEAR) : at]):
        return True
    return any(
        after == "of" and before in words.quantities for before, after in itertools.pairwise(tokens)
    )


def _gave(at: int, tokens: list[str], words: Lexicon) -> bool:
    """Whether a source is said to have given so much."""
    if not words.plans.isdisjoint(tokens[:at]) or words.determiners.isdisjoint(
        tokens[max(0, at - NEAR) : at]
    ):
        return False
    after = tokens[at + 1 : at + 1 + PREDICATE]
    given = next((place for place, word in enumerate(after) if word in words.returns), None)
    return given is not None and not words.amounts.isdisjoint(after[given + 1 :])


def _counted_wrong(before: str, seen: Seen, words: Lexicon) -> bool:
    count = int(before) if before.isdecimal() and len(before) < 4 else words.counts.get(before)
    return count is not None and count not in seen.counts
