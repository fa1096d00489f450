"""A text becomes the words that carry its content; what requests are made of is left out.

The list of request words and the folding of a plural are part of the algorithm's version: another
list gives other similarities.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from palio.suites.keys import normalise_text

_WORD = re.compile(r"[^\W_]+")


@cache
def request_words() -> frozenset[str]:
    """Words that name no product: asking, counting, price, services, voucher rules."""
    text = (resources.files("palio.suites") / "request_words.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(word for line in lines for word in line.split())


def words_of(text: str) -> list[str]:
    """All words of a text in order, normalised: runs of letters and digits."""
    return _WORD.findall(normalise_text(text))


def content_words(text: str) -> list[str]:
    """The words that carry content, in order: no request words, a plural "s" folded away."""
    request = request_words()
    return [_singular(word) for word in words_of(text) if word not in request]


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word
