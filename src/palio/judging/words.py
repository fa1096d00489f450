"""One way to cut text into tokens for both sides of every evidence question."""

from __future__ import annotations

import hashlib
import re
import tomllib
import unicodedata
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

_TOKEN = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+\.\d+|[^\W_]+")
_SENTENCE = re.compile(r"[.!?;](?=\s|$)|[\n\u3002]")
_INVISIBLE = dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD))


class Lexicon(NamedTuple):
    """The word lists of `evidence_words.toml` and their digest; `reference` joins four of them."""

    generic: frozenset[str]
    comparative: frozenset[str]
    cheaper: frozenset[str]
    against: frozenset[str]
    negative: frozenset[str]
    positive: frozenset[str]
    choice: frozenset[str]
    pronouns: frozenset[str]
    money: frozenset[str]
    rows: frozenset[str]
    empty: tuple[str, ...]
    trouble: frozenset[str]
    set_nouns: frozenset[str]
    soft_nouns: frozenset[str]
    weak_nouns: frozenset[str]
    came: frozenset[str]
    sources: frozenset[str]
    returns: frozenset[str]
    amounts: frozenset[str]
    wishes: frozenset[str]
    determiners: frozenset[str]
    plans: frozenset[str]
    states: frozenset[str]
    within: frozenset[str]
    quantities: frozenset[str]
    joints: frozenset[str]
    because: frozenset[str]
    opinions: frozenset[str]
    copulas: frozenset[str]
    row_nouns: frozenset[str]
    no_position: frozenset[str]
    reference: frozenset[str]
    counts: dict[str, int]
    positions: dict[str, int]
    digest: str


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The packaged word lists."""
    data = files("palio.judging").joinpath("evidence_words.toml").read_bytes()
    lists = tomllib.loads(data.decode("utf-8"))
    counts, positions = lists.pop("counts"), lists.pop("positions")
    empty = tuple(lists.pop("empty"))
    named = {name: frozenset(words) for name, words in lists.items()}
    nouns = (named[name] for name in ("set_nouns", "soft_nouns", "weak_nouns", "sources"))
    return Lexicon(
        **named,
        reference=frozenset().union(*nouns),
        empty=empty,
        counts=counts,
        positions=positions,
        digest=hashlib.sha256(data).hexdigest(),
    )


def fold(text: str) -> str:
    """Lower case, compatibility forms resolved, every decimal digit of Unicode as 0-9."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).casefold()
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(char)) if char.isdecimal() and not char.isascii() else char
        for char in text
    )


def tokens(folded: str) -> list[str]:
    """Words and numbers of folded text; numbers in one form: 1,299.00 and 1299 are equal."""
    return [
        number(token) if token[0].isdigit() and ("." in token or "," in token) else token
        for token in _TOKEN.findall(folded.replace("php", "php "))
    ]


def number(text: str) -> str:
    """A number's one form: no thousands separators, no trailing zeros of a fraction."""
    text = text.replace(",", "")
    return text.rstrip("0").rstrip(".") if "." in text else text


@lru_cache(maxsize=1 << 16)
def tokens_of(text: str) -> tuple[str, ...]:
    """Tokens of a catalogue text; cached, since many runs see the same products."""
    return tuple(tokens(fold(text)))


@lru_cache(maxsize=1 << 16)
def token_set(text: str) -> frozenset[str]:
    """The set of `tokens_of`."""
    return frozenset(tokens_of(text))


def stem(token: str) -> str:
    """A token without a common English ending: an inflected query word stays the query's."""
    for ending, least in (("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if token.endswith(ending) and len(token) >= least:
            return token[: -len(ending)]
    return token


def sentences(folded: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a text; a full stop inside a number ends none."""
    spans = []
    start = 0
    for match in _SENTENCE.finditer(folded):
        if match.start() > start:
            spans.append((start, match.start()))
        start = match.end()
    if start < len(folded):
        spans.append((start, len(folded)))
    return spans
