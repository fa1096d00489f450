"""Gate 4 asks one question of one step of thinking: does it say why one candidate is better?"""

from __future__ import annotations

import re
from typing import NamedTuple

from palio.judging.naming import MAX_NAMED, Namer
from palio.judging.seen import Seen
from palio.judging.thinking import Sentence, Thought
from palio.judging.words import Lexicon, fold, stem, token_set
from palio.judging.words import tokens as tokens_in

_PAUSE = re.compile(r"[,:()\u2014](?=\s|$)|\s[-\u2013]\s|[()]")
REASON_WORDS = 4
"""Words behind "because it is" among which the reason stands: "... clearly a blue one"."""


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

    A datum that the thought also gives to a candidate which does not hold it is no reason, nor
    does a sentence weigh that prefers a product to itself or for a value that no result has.
    """
    if len(seen.products) < 2:
        return None
    read = _read(thought.sentences, seen, words)
    data = _data(read, seen, words)
    if len(data) < 2:
        return None
    found = _weighing(read, data, seen, words)
    wrong = _misattributed(read, seen, words) if found is not None else ()
    for token in wrong:
        for held in data.values():
            held.named.pop(token, None)
            held.against.pop(token, None)
    return _weighing(read, data, seen, words) if wrong else found


def _weighing(
    read: list[_Read], data: dict[str, _Data], seen: Seen, words: Lexicon
) -> Sentence | None:
    contrast: Sentence | None = None
    rejected: list[str] = []
    before: list[str] = []
    for one in read:
        if not one.about:
            continue
        if not one.words.isdisjoint(words.comparative) and not _idle(one, seen, words):
            together = one.about if len(one.about) > 1 else [*before, *one.about]
            if _reasoned(together, data, seen) or _price_relation(one, seen, words):
                return one.sentence
        chooses = not one.words.isdisjoint(words.choice)
        accepts = bool(rejected) and (chooses or not one.words.isdisjoint(words.positive))
        if contrast is None and accepts and _reasoned([*rejected, *one.about], data, seen):
            contrast = one.sentence
        if not chooses and not one.words.isdisjoint(words.negative):
            rejected = [*rejected, *one.about][-MAX_NAMED:]
        before = one.about
    return contrast


def _read(sentences: list[Sentence], seen: Seen, words: Lexicon) -> list[_Read]:
    read = []
    last: list[str] = []
    namer = Namer(seen, words)
    for sentence in sentences:
        named = namer.candidates(sentence.tokens)
        follows = not named and bool(sentence.tokens) and sentence.tokens[0] in words.pronouns
        about = named or (last if follows else [])
        read.append(_Read(sentence, frozenset(sentence.tokens), named, about))
        last = about or last
    return read


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


def _misattributed(read: list[_Read], seen: Seen, words: Lexicon) -> set[str]:
    """Data that a clause about one candidate gives to it although others hold them and it does not.

    Only clauses that name a single product, and deny nothing, say so surely.
    """
    wrong: set[str] = set()
    namer = Namer(seen, words)
    for one in read:
        if not one.named:
            continue
        for clause in _clauses(one.sentence, words):
            ids = set(namer.candidates(clause))
            if len(ids) != 1 or not words.negative.isdisjoint(clause):
                continue
            wrong.update(
                token
                for token in clause
                if token in seen.owners
                and ids.isdisjoint(seen.owners[token])
                and _is_reason(token, seen)
            )
    return wrong


def _clauses(sentence: Sentence, words: Lexicon) -> list[list[str]]:
    """The tokens of a sentence, cut at pauses and where another thing begins to be spoken of."""
    clauses: list[list[str]] = [[]]
    for part in _PAUSE.split(fold(sentence.text)):
        for token in tokens_in(part):
            if token in words.joints:
                clauses.append([])
            else:
                clauses[-1].append(token)
        clauses.append([])
    return [clause for clause in clauses if len(clause) > 1]


def _idle(one: _Read, seen: Seen, words: Lexicon) -> bool:
    """Whether a relation relates nothing: a product to itself, or by a value that none has."""
    tokens = one.sentence.tokens
    ids = [token for token in tokens if token in seen.products]
    if len(ids) > 1 and len(one.named) == 1 and not one.words.isdisjoint(words.against):
        return True
    for at, token in enumerate(tokens):
        if token not in words.copulas or words.because.isdisjoint(tokens[max(0, at - 2) : at]):
            continue
        for said in tokens[at + 1 : at + 1 + REASON_WORDS]:
            if said in words.comparative or said[0].isdigit() or said.endswith(("er", "est")):
                break
            if not (seen.generic(said) or said in words.opinions or said.endswith("ly")):
                return not _held(said, seen)
    return False


def _held(word: str, seen: Seen) -> bool:
    """Whether any result holds a word, in a datum or in a description."""
    if word in seen.owners or stem(word) in seen.owners:
        return True
    return any(word in token_set(text) for text in seen.texts)


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
