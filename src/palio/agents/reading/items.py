"""A request falls apart into its items: numbered, ordinal, or joined by "also"."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

import msgspec

from palio.records.base import Record

_BOTH = re.compile(r"\bboth\b")
_AND = re.compile(r",? and (?=an? |some |the )")


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


def split_items(text: str, *, same_shop: bool) -> list[str]:
    """The parts of lower-case text that each describe one item, in order; at least one."""
    for name in ("numbered", "ordinal"):
        parts = _compiled(name).split(text)
        if len(parts) > 2:
            return [part for part in parts[1:] if part.strip()]
    if same_shop and "; " in text:
        return _compiled("semicolon").split(text)
    parts = _compiled("also").split(text)
    if len(parts) == 1 and same_shop and _BOTH.search(text):
        parts = _AND.split(text, maxsplit=1)
    return parts
