"""A text becomes the words that carry its content; what requests are made of is left out.

The list of request words and the folding of a plural are part of the algorithm's version: another
list gives other similarities.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib import resources

from palio.suites.keys import normalise_text

_WORD = re.compile(r"[^\W_]+")
_ALIKE = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u04cf\u051b\u051d\u043a\u043c"
    "\u0442\u0432\u043d\u03b1\u03b5\u03bf\u03c1\u03c5\u03c7\u03b9\u03ba\u03bd\u03c4\u0131\u0142\u00f8\u0111\u0261\u0251",
    "aeopcyxijsdhlqwkmtbhaeopyxikvtilodga",
)
"""Letters of other scripts, and of Latin, that look like one of ASCII: who swaps them leaves a
request that reads the same and shares no word with what it was."""


@cache
def request_words() -> frozenset[str]:
    """Words that name no product: asking, counting, price, services, voucher rules."""
    text = (resources.files("palio.suites") / "request_words.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(word for line in lines for word in line.split())


def words_of(text: str) -> list[str]:
    """All words of a text in order, normalised, marks and look-alike letters folded away."""
    return _WORD.findall(_plain_letters(normalise_text(text)))


def _plain_letters(text: str) -> str:
    """Letters without marks, look-alikes as ASCII; a normalised text without either is itself."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    bare = "".join(char for char in apart if unicodedata.category(char) not in ("Mn", "Me"))
    return bare.translate(_ALIKE)


def content_words(text: str) -> list[str]:
    """The words that carry content, in order: no request words, a plural "s" folded away."""
    request = request_words()
    return [_singular(word) for word in words_of(text) if word not in request]


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word
