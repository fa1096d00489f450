"""Gates 2 and 3: does thinking name what a result held, or at least say truly what shape it had?"""

from __future__ import annotations

from collections.abc import Iterator

from palio.judging.referring import refers
from palio.judging.seen import Seen
from palio.judging.thinking import Sentence, Thought
from palio.judging.words import Lexicon, tokens_of

SHORT_NUMBER = 3
"""Numbers of fewer digits are a datum only next to a word of money: "50" alone is anything."""
WEAK_WORDS = 2
"""Title words, one alone being chance, that make a sentence or a step refer to results."""
MAX_TEXT = 200_000
"""Characters of descriptions that are compared, the first ones."""


def cites(thought: Thought, seen: Seen, words: Lexicon) -> Sentence | None:
    """The first sentence that names a datum which an earlier result holds and the query does not.

    A datum is a product id, a shop id, an amount, a word of a brand, attribute, option or service,
    a model code of a title, or two words of one title.
    """
    for sentence in thought.sentences:
        if _cites(sentence.tokens, seen, words):
            return sentence
    return None


def _cites(tokens: list[str], seen: Seen, words: Lexicon) -> bool:
    title_words: dict[str, set[str]] = {}
    for at, token in enumerate(tokens):
        if token not in seen.owners and token not in seen.products and token not in seen.numbers:
            continue
        if len(token) < 2 or not seen.new(token):
            continue
        if token in seen.products or token in seen.shops:
            if len(token) >= SHORT_NUMBER:
                return True
        elif token[0].isdigit() and token in seen.numbers:
            if _is_amount(tokens, at, words):
                return True
        elif token in seen.values and not (token.isdigit() and len(token) < SHORT_NUMBER):
            return True
        elif token in seen.titles:
            if _is_code(token):
                return True
            for product_id in seen.owners[token]:
                title_words.setdefault(product_id, set()).add(token)
    return any(len(named) >= WEAK_WORDS for named in title_words.values())


def _is_amount(tokens: list[str], at: int, words: Lexicon) -> bool:
    token = tokens[at]
    if "." in token or len(token) >= SHORT_NUMBER:
        return True
    near = tokens[max(0, at - 2) : at + 3]
    return not words.money.isdisjoint(near)


def _is_code(token: str) -> bool:
    """A model code such as "es30d": letters and digits, at least four."""
    return len(token) > 3 and not token.isdigit() and any(char.isdigit() for char in token)


def analyses(thought: Thought, seen: Seen, words: Lexicon) -> Sentence | None:
    """The first sentence that refers to the content or, truly, to the shape of earlier results.

    Content: two words of titles or values that the query does not hold, or three neighbouring
    words of a description. Shape: the number of rows, an empty result, an error or warning, each
    only if an earlier result was so. A statement about the results as a whole refers to them,
    however little it says; a plan ("let me look at the results") and the request do not.
    """
    named: set[str] = set()
    for sentence in thought.sentences:
        if _names_shape(sentence, seen, words) or refers(sentence.tokens, seen, words):
            return sentence
        named.update(
            token
            for token in sentence.tokens
            if token in seen.owners and len(token) > 2 and not token.isdigit() and seen.new(token)
        )
        if len(named) >= WEAK_WORDS:
            return sentence
    return _describes(thought, seen)


def _names_shape(sentence: Sentence, seen: Seen, words: Lexicon) -> bool:
    for before, token in zip(sentence.tokens, sentence.tokens[1:], strict=False):
        if token in words.rows and not seen.asked(before):
            count = int(before) if before.isdecimal() and len(before) < 4 else None
            if words.counts.get(before, count) in seen.counts:
                return True
    if seen.empty:
        said = f" {' '.join(sentence.tokens)} "
        if any(f" {phrase} " in said for phrase in words.empty):
            return True
    return seen.trouble and not words.trouble.isdisjoint(sentence.tokens)


def _describes(thought: Thought, seen: Seen) -> Sentence | None:
    """A sentence with three neighbouring words of a description, one of them new and long."""
    if not seen.texts:
        return None
    held: set[tuple[str, ...]] = set()
    left = MAX_TEXT
    for text in seen.texts:
        held.update(_triples(tokens_of(text[:left])))
        left -= len(text)
        if left <= 0:
            break
    for sentence in thought.sentences:
        for triple in _triples(sentence.tokens):
            if triple in held and any(len(word) > 3 and seen.new(word) for word in triple):
                return sentence
    return None


def _triples(tokens: list[str] | tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return zip(tokens, tokens[1:], tokens[2:], strict=False)
