"""English text analysis equal to Lucene's EnglishAnalyzer: words, possessives, stop words, stems.

Words follow Unicode Standard Annex 29 as Lucene's StandardTokenizer reads it: runs of letters,
digits and connectors; a full stop, colon or apostrophe joins two letters; a full stop, comma,
semicolon or apostrophe joins two digits; marks stay with what they follow; ideographs and hiragana
stand alone; katakana and the scripts without spaces form runs; emoji are words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache

from palio.world.porter import stem

ANALYSER_ID = "english-lucene-1"
"""Names this analysis in every `SearchSpec`; it changes when any output changes."""

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then "  # noqa: SIM905
    "there these they this to was will with".split()
)
"""Lucene's default English stop words."""

MAX_TOKEN = 255
"""StandardTokenizer cuts longer words into pieces of this many characters."""

_JOIN_LETTERS = ".:'·\u0387\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"
_JOIN_DIGITS = (
    ".,;'\u037e\u0589\u060c\u060d\u066c\u07f8\u2018\u2019\u2024\u2044\ufe10\ufe14\ufe50\ufe52"
    "\ufe54\uff07\uff0c\uff0e\uff1b"
)
_IDEOGRAPH = "\u3006\u3007\u3021-\u3029\u3038-\u303a\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HIRAGANA = "\u3041-\u3096\u309d-\u309f"
_KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_NO_SPACES = (
    "\u0e00-\u0e4f\u0e5a-\u0ecf\u0eda-\u0eff\u1000-\u103f\u104a-\u108f\u109a-\u109f\u1780-\u17df"
    "\u17ea-\u17ff\u1950-\u19cf\u19da-\u19df\u1a20-\u1a7f\uaa60-\uaadf"
)
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe"
    "\u2600-\u27bf\u2934\u2935\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f1e5"
    "\U0001f200-\U0001faff"
)
_ASCII_WORD = re.compile(
    r"[a-z0-9_]+(?:(?:(?<=[a-z])[.:'](?=[a-z])|(?<=[0-9])[.,;'](?=[0-9]))[a-z0-9_]+)*",
    re.ASCII | re.IGNORECASE,
)
_POSSESSIVE = re.compile("['\u2019\uff07][sS]\\Z")
_LOWER = {0x130: "i", 0x3A3: "\u03c3"}
"""Where lowering one character at a time, as Lucene does, differs from str.lower."""


def words(text: str) -> list[str]:
    """The words of a text in order, in their own spelling, over-long ones in pieces."""
    pattern = _ASCII_WORD if text.isascii() else _unicode_word()
    found: list[str] = pattern.findall(text)
    if len(text) > MAX_TOKEN and any(len(word) > MAX_TOKEN for word in found):
        return [
            word[at : at + MAX_TOKEN] for word in found for at in range(0, len(word), MAX_TOKEN)
        ]
    return found


@lru_cache(maxsize=1 << 18)
def term_of_word(word: str) -> str:
    """Index term of one word of at most `MAX_TOKEN` characters; "" for stop words."""
    if not word.strip("_"):
        return ""
    word = _POSSESSIVE.sub("", word)
    if not word.isascii():
        word = word.translate(_LOWER)
    word = word.lower()
    return stem(word) if word and word not in STOP_WORDS else ""


def analyse(text: str) -> list[str]:
    """Index terms of a text in order, repetitions kept."""
    return [term for word in words(text) if (term := term_of_word(word))]


@cache
def _unicode_word() -> re.Pattern[str]:
    """The pattern for any text, made once (about 30 ms) when the first non-ASCII text comes."""
    letters, digits, marks, links = _character_classes()
    core = f"[{letters}{digits}{links}][{letters}{digits}{links}{marks}]*"
    joins = (
        f"(?<=[{letters}{marks}])[{_JOIN_LETTERS}](?=[{letters}])"
        f"|(?<=[{digits}{marks}])[{_JOIN_DIGITS}](?=[{digits}])"
    )
    one_emoji = f"[{_EMOJI}][\ufe0f\U0001f3fb-\U0001f3ff]*"
    return re.compile(
        f"[0-9#*]\ufe0f?\u20e3|[\U0001f1e6-\U0001f1ff]{{2}}|{one_emoji}(?:\u200d{one_emoji})*"
        f"|[{_IDEOGRAPH}\U00020000-\U0003ffff{_HIRAGANA}][{marks}]*|[{_KATAKANA}][{_KATAKANA}{marks}]*"
        f"|[{_NO_SPACES}][{_NO_SPACES}{marks}]*|{core}(?:(?:{joins}){core})*"
    )


def _character_classes() -> tuple[str, str, str, str]:
    """Regular expression class bodies: letters, digits, marks, connectors (two lowest planes)."""
    apart = re.compile(f"[{_IDEOGRAPH}{_HIRAGANA}{_KATAKANA}{_NO_SPACES}{_EMOJI}]")
    kinds: dict[str, list[int]] = {"L": [], "D": [], "M": [], "C": []}
    for code in range(0x20000):
        kind = _kind(chr(code))
        if kind and (kind != "L" or not apart.match(chr(code))):
            kinds[kind].append(code)
    return (_ranges(kinds["L"]), _ranges(kinds["D"]), _ranges(kinds["M"]), _ranges(kinds["C"]))


def _kind(character: str) -> str:
    """L letter, D digit, M mark or format, C connector, "" none of them."""
    category = unicodedata.category(character)
    if category[0] == "L" or category == "Nl" or "\u24b6" <= character <= "\u24e9":
        return "L"
    if category == "Nd":
        return "D"
    if category[0] == "M" or (category == "Cf" and character not in "\u200b\ufeff"):
        return "M"
    return "C" if category == "Pc" or character == "\u202f" else ""


def _ranges(codes: Iterable[int]) -> str:
    """A class body such as "a-z" for ascending code points."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(
        f"{re.escape(chr(first))}-{re.escape(chr(last))}" if last > first else re.escape(chr(first))
        for first, last in runs
    )
