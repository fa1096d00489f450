"""Wanted and seen side by side: does a title fit, does a product hold every wanted value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

WORD = re.compile(r"[^\W_]+")
MISSING = "none"
"""What is written as seen where a product has nothing of the kind."""


class Check(NamedTuple):
    """One wanted value beside the one seen; a loose one counts for nothing when it fails."""

    wanted: str
    seen: str
    ok: bool
    loose: bool = False

    def text(self) -> str:
        """``{wanted} {seen} yes|no``."""
        return f"{self.wanted} {self.seen} {'yes' if self.ok else 'no'}"


@lru_cache(maxsize=16384)
def stems(text: str) -> frozenset[str]:
    """Lower-case words of a text with a light plural fold; the order of words says nothing."""
    return frozenset(_stem(word) for word in WORD.findall(text.lower()))


def coverage(words: Sequence[str], title: str) -> float:
    """Share of the wanted words that stand in a title, in [0, 1]; 1 when none is wanted."""
    wanted = [stem for word in words for stem in stems(word)]
    if not wanted:
        return 1.0
    held = stems(title)
    return sum(stem in held for stem in wanted) / len(wanted)


def missing_words(words: Sequence[str], title: str) -> list[str]:
    """Wanted words that a title does not hold, in order."""
    held = stems(title)
    return [word for word in words if not stems(word) <= held]


def compare(
    values: Sequence[tuple[str, str]], row: Mapping[str, Any], *, title: str = ""
) -> list[Check]:
    """Wanted (name or "", value) pairs against a view row, in one single SKU or the attributes.

    A value without a name may also stand in the title or be part of a longer value.

    As in the scorer, values that different SKUs hold do not add up: the SKU with the most hits
    is shown, the first of them on a tie.
    """
    attributes = _lists(row.get("attributes"))
    skus = [_lists(sku) for sku in _members(row.get("sku_options"))] or [{}]
    best: list[Check] = []
    for sku in skus:
        checks = [_check(name, value, sku, attributes, title) for name, value in values]
        if not best or sum(check.ok for check in checks) > sum(check.ok for check in best):
            best = checks
    return best


def verdict(product_id: str, checks: Sequence[Check], price: str = "") -> str:
    """``{id} {wanted} {seen} yes|no ... {price}``; stops at the first no."""
    parts = [product_id]
    for check in checks:
        parts.append(check.text())
        if not check.ok and not check.loose:
            break
    if price:
        parts.append(price)
    return " ".join(parts) + "."


def _check(
    name: str,
    value: str,
    sku: Mapping[str, list[str]],
    attributes: Mapping[str, list[str]],
    title: str,
) -> Check:
    """A named value against what stands under its name, any other against everything there is."""
    seen = [*sku.get(name, ()), *attributes.get(name, ())] if name else []
    everything = [text for pool in (*sku.values(), *attributes.values()) for text in pool]
    pool = seen or everything
    if value in pool:
        return Check(value, value, True)
    alike = next((text for text in pool if _loosely_equal(value, text)), None)
    if alike is None and not name:
        alike = next((text for text in pool if stems(value) <= stems(text)), None)
        if alike is None and stems(value) <= stems(title):
            alike = value
    if alike is not None:
        return Check(value, alike, True)
    return Check(value, seen[0] if seen else MISSING, False)


def _loosely_equal(wanted: str, seen: str) -> bool:
    """Equal but for case, order, plural and punctuation: `EU 40` and `eu:40`."""
    return stems(wanted) == stems(seen)


def _lists(value: Any) -> dict[str, list[str]]:
    if not isinstance(value, Mapping):
        return {}
    return {
        str(name): [str(text) for text in values] if isinstance(values, list) else [str(values)]
        for name, values in value.items()
    }


def _members(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _stem(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word
