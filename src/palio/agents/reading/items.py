"""A request falls apart into its items: numbered, ordinal, or joined by "also"."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

import msgspec

from palio.records.base import Record

_BOTH = re.compile(r"\bboth\b")


class Expressions(Record, frozen=True):
    """Regular expressions for real requests; see phrases.toml."""

    service: dict[str, tuple[str, ...]]
    same_shop: dict[str, tuple[str, ...]]
    split: dict[str, str]


@cache
def expressions() -> Expressions:
    """The expressions of phrases.toml."""
    folder = resources.files("palio.agents.reading")
    text = (folder / "phrases.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Expressions)


@cache
def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(expressions().split[name])


def wants_same_shop(text: str) -> bool:
    """Whether lower-case text asks for one shop that sells everything."""
    return any(re.search(form, text) for form in expressions().same_shop["any"])


def split_items(text: str, *, several: bool) -> list[str]:
    """The parts of lower-case text that each describe one item, in order; at least one.

    Args:
        text: the request without its voucher rules.
        several: whether more than one item is likely, so that a list without markers is cut too.
    """
    parts = _compiled("numbered").split(text)
    if len(parts) > 2:
        return [part for part in parts[1:] if part.strip()] or [text]
    if several and "; " in text:
        return _compiled("semicolon").split(text)
    parts = _compiled("ordinal").split(text)
    ordered = len(parts) > 2
    cuts = ["sentence", "also_sentence"]
    cuts += [] if ordered else ["also"]
    cuts += ["list"] if several and not ordered else []
    parts = _cut(parts[1:] if ordered else parts, cuts)
    if several and not ordered and (len(parts) > 1 or _BOTH.search(text)):
        parts = _cut(parts, ["pair"])
    return parts or [text]


def _cut(parts: list[str], names: list[str]) -> list[str]:
    for name in names:
        parts = [piece for part in parts for piece in _compiled(name).split(part) if piece.strip()]
    return parts
