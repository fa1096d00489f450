"""Gate 4 asks one question of one step of thinking: does it say why one candidate is better?"""

from __future__ import annotations

from typing import NamedTuple

from palio.judging.seen import Seen
from palio.judging.thinking import Sentence, Thought
from palio.judging.words import Lexicon

MAX_NAMED = 16
"""Candidates of one sentence, and data of one candidate, that are looked at: a list of fifty ids
is a list, not a comparison, and the cost must stay linear in the thinking."""


class _Read(NamedTuple):
    """A sentence with the candidates that it names, or takes over from the one before."""

    sentence: Sentence
    words: frozenset[str]
    named: list[str]
    about: list[str]


def weighs(thought: Thought, seen: Seen, words: Lexicon) -> Sentence | None:
    """The sentence that prefers one of two or more seen candidates for a reason, or None.

    Two candidates stand in relation by a comparative ("over", "cheaper than", "but") or by a
    verdict on each ("6093 ... no. pick 4821"). The reason is a datum of theirs that the record
    gives to one and not to all of them: a value, title word, price or shop. That the query asks
    for the datum does not matter here, unless it is a number of the query. Products with many
    options own values that neither exhibits as offered, so a datum named in the rejection of one
    candidate, and of no other, is a reason too.
    """
    if len(seen.products) < 2:
        return None
    read = _read(thought.sentences, seen, words)
    data = _data(read, seen, words)
    if len(data) < 2:
        return None
    contrast: Sentence | None = None
    rejected: list[str] = []
    before: list[str] = []
    for one in read:
        if not one.about:
            continue
        if one.words & words.comparative:
            together = one.about if len(one.about) > 1 else [*before, *one.about]
            if _reasoned(together, data, seen) or _price_relation(one, seen, words):
                return one.sentence
        accepts = bool(rejected) and not one.words.isdisjoint(words.choice | words.positive)
        if contrast is None and accepts and _reasoned([*rejected, *one.about], data, seen):
            contrast = one.sentence
        if one.words & words.negative and not one.words & words.choice:
            rejected = [*rejected, *one.about][-MAX_NAMED:]
        before = one.about
    return contrast


def _read(sentences: list[Sentence], seen: Seen, words: Lexicon) -> list[_Read]:
    read = []
    last: list[str] = []
    for sentence in sentences:
        named = candidates(sentence.tokens, seen)
        follows = not named and bool(sentence.tokens) and sentence.tokens[0] in words.pronouns
        about = named or (last if follows else [])
        read.append(_Read(sentence, frozenset(sentence.tokens), named, about))
        last = about or last
    return read


def candidates(tokens: list[str], seen: Seen) -> list[str]:
    """Ids of the seen products that a sentence names, in its order.

    By id, by two neighbouring words of a title that no other seen product has, or by the brand
    or first title word where one product alone has it.
    """
    found: dict[str, None] = {}
    previous = ""
    for token in tokens:
        if token in seen.products:
            found[token] = None
        owners = seen.pairs.get((previous, token))
        if owners is not None and len(owners) == 1 and (seen.new(token) or seen.new(previous)):
            found[next(iter(owners))] = None
        heads = seen.heads.get(token)
        if heads is not None and len(heads) == 1 and len(token) > 2 and seen.new(token):
            found[next(iter(heads))] = None
        previous = token
        if len(found) >= MAX_NAMED:
            break
    return list(found)


class _Data(NamedTuple):
    """Data of a candidate that sentences about it name; `against` those that reject it."""

    named: dict[str, None]
    against: dict[str, None]


def _data(read: list[_Read], seen: Seen, words: Lexicon) -> dict[str, _Data]:
    """Candidate -> data of its own that sentences about it name, in order."""
    data: dict[str, _Data] = {}
    for one in read:
        for product_id in one.about:
            data.setdefault(product_id, _Data({}, {}))
        if not one.about:
            continue
        rejects = len(one.about) == 1 and not one.words.isdisjoint(words.negative)
        for token in one.sentence.tokens:
            owners = seen.owners.get(token)
            if owners is None or not _is_reason(token, seen):
                continue
            for product_id in one.about:
                if product_id in owners and len(data[product_id].named) < MAX_NAMED:
                    data[product_id].named[token] = None
                    if rejects:
                        data[product_id].against[token] = None
    return data


def _is_reason(token: str, seen: Seen) -> bool:
    """A datum that can tell candidates apart: no generic word, no number of the query, no id."""
    if token in seen.products:
        return False
    if token[0].isdigit():
        return len(token) > 1 and not seen.asked(token)
    return len(token) > 1 and not seen.generic(token)


def _reasoned(together: list[str], data: dict[str, _Data], seen: Seen) -> bool:
    """Whether some named datum tells one of the candidates from the others."""
    group = set(together)
    if len(group) < 2:
        return False
    held = [data[product_id] for product_id in together if product_id in data]
    if any(not group <= seen.owners[token] for one in held for token in one.named):
        return True
    return any(
        all(token not in other.named for other in held if other is not one)
        for one in held
        for token in one.against
    )


def _price_relation(one: _Read, seen: Seen, words: Lexicon) -> bool:
    """Whether the record agrees: "A is cheaper than B" needs no number then."""
    if len(one.named) < 2 or not one.words & words.cheaper:
        return False
    first, second = (seen.prices.get(product_id) for product_id in one.named[:2])
    return first is not None and second is not None and first < second
