"""Price bounds of one item: a cue or a currency beside the numbers, else numbers without a unit."""

from __future__ import annotations

import re

_N = r"(₱?\d+(?:\.\d+)?)"
_LINK = r"\s*(?:to|and|-|\u2013)\s*"
_CUE = re.compile(r"(?:pric|cost|pay|worth|budget|spend|₱)")
# "in" is no inch here: "cheaper than 204 in blue"
_UNIT = re.compile(
    r"\s*-?(?:inch|cm|mm|m\b|km|kg|g\b|mg|ml|l\b|oz|lb|ft|feet|hz|khz|mbps|gb|mb|tb|mah|w\b|"
    r"watt|v\b|volt|year|month|week|day|hour|hr|min|sec|pc|piece|pack|people|person|page|x\b|\*|%|"
    r"degree|k\b|lumen|spf|count|port|set|layer|grit|tooth|teeth|size)"
)
# Order matters: "from 10 to 20" must not be read as "from 10".
_FORMS = (
    (
        "between",
        re.compile(
            r"\b(?:between|from|priced?(?: at)?|costing|costs?|range(?: of)?|ranging(?: from)?|"
            r"in the|at|for|within)\s" + _N + _LINK + _N + r"(?: (?:peso )?range)?"
        ),
    ),
    ("greater", re.compile(r"\bfrom " + _N + r" (?:up(?:wards?)?|and (?:up|above)|or more)\b")),
    ("greater", re.compile(_N + r"(?:\+| (?:and|or) (?:up|above|more|higher)\b)")),
    ("less", re.compile(_N + r" (?:and|or) (?:below|less|lower|under|cheaper)\b")),
    (
        "less",
        re.compile(
            r"\b(?:under|below|(?:less|cheaper|lower|no more|not more) than|at most|up to|not over|"
            r"(?:not|never) (?:exceeding|above|over)|within|a max(?:imum)? of)\s(?:the )?" + _N
        ),
    ),
    (
        "greater",
        re.compile(
            r"\b(?:above|over|(?:more|higher|greater|no less|not less) than|at least|exceeding|"
            r"starting (?:from|at)|a min(?:imum)? of|upwards of)\s(?:the )?" + _N
        ),
    ),
)
_BEFORE = re.compile(r"(?:\S+ ){0,4}$")
_CURRENCY_BEFORE = re.compile(r"(?:₱|\bphp|\bp)\s?(?=\d)")
_CURRENCY_AFTER = re.compile(r"(\d+(?:\.\d+)?) ?(?:philippine )?(?:pesos?|php)\b")
_RANGE_CURRENCY = re.compile(r"(?<![\d₱.])(\d+(?:\.\d+)?)(?=\s*(?:to|and|-|\u2013)\s*₱\d)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


def mark_amounts(text: str) -> str:
    """Text in which "375 pesos", "PHP 375" and "₱375" are all "₱375" and 1,000 is 1000."""
    text = _THOUSANDS.sub("", text)
    text = _CURRENCY_BEFORE.sub("₱", text)
    text = _CURRENCY_AFTER.sub(r"₱\1", text)
    text = text.replace("₱₱", "₱")
    return _RANGE_CURRENCY.sub(r"₱\1", text)


def take_price(text: str, *, bare: bool) -> tuple[str, float | None, float | None]:
    """The text without its price phrase, and the bounds.

    Numbers with a currency or near a price word are tried first; then, if `bare`, numbers that no
    unit follows.
    """
    for cued in (True, False) if bare else (True,):
        for mode, pattern in _FORMS:
            for found in pattern.finditer(text):
                if _counts(text, found, cued=cued):
                    numbers = sorted(float(group.lstrip("₱")) for group in found.groups())
                    low = numbers[0] if mode != "less" else None
                    high = numbers[-1] if mode != "greater" else None
                    return text[: found.start()] + " " + text[found.end() :], low, high
    return text, None, None


def _counts(text: str, found: re.Match[str], *, cued: bool) -> bool:
    if cued:
        before = _BEFORE.search(text[: found.start()])
        near = (before.group() if before else "") + found.group()
        return bool(_CUE.search(near))
    return not _UNIT.match(text, found.end())
