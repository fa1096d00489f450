"""Types, values and services are found in text by their longest spoken form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from palio.agents.reading.items import expressions
from palio.records import SERVICES
from palio.records.base import Record
from palio.world.synthesis.lexicon import WORLDS, load_lexicon
from palio.world.synthesis.wording import common_phrases, filler_words, load_banks, template_words


class Spoken(Record, frozen=True):
    """What one spoken form stands for: a value of an attribute or option, under its name."""

    name: str
    value: str


class GroupWords(Record, frozen=True):
    """The spoken values of one group of types."""

    pattern: re.Pattern[str]
    values: dict[str, Spoken]


def alternation(forms: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds whole spoken forms, the longest where several begin together."""
    longest = sorted(set(forms), key=lambda form: (-len(form), form))
    body = "|".join(re.escape(form).replace(r"\ ", r"\s+") for form in longest)
    return re.compile(rf"(?<![\w'-])(?:{body})(?![\w'-])")


@cache
def type_words(world: str) -> tuple[re.Pattern[str], dict[str, tuple[str, str]]]:
    """A pattern of all product types, and spoken form -> (group, canonical name)."""
    known: dict[str, tuple[str, str]] = {}
    for group in load_lexicon(world).groups:
        for kind in group.types:
            for form in (kind.name, *kind.spoken):
                known[form] = (group.name, kind.name)
    return alternation(known), known


@cache
def group_words(world: str, name: str) -> GroupWords:
    """Spoken values of one group; of all groups, without names, for the name ""."""
    values: dict[str, Spoken] = {}
    for group in load_lexicon(world).groups:
        if name in ("", group.name):
            for trait in group.traits:
                for value, forms in trait.values.items():
                    for form in forms:
                        values.setdefault(form, Spoken(name=name and trait.name, value=value))
    return GroupWords(pattern=alternation(values), values=values)


@cache
def line_words(world: str) -> dict[str, int]:
    """Product lines of a world."""
    return {line: place for place, line in enumerate(load_lexicon(world).lines)}


@cache
def _service_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    patterns = []
    for tag in SERVICES:
        said = list(common_phrases().service[tag])
        for world in WORLDS:
            for bank in load_banks(world):
                said += bank.service.get(tag, ())
        own = "|".join(re.escape(phrase) for phrase in sorted(said, key=len, reverse=True))
        real = "|".join(expressions().service[tag])
        patterns.append((tag, re.compile(rf"\b(?:{own}|{real})(?![\w-])", re.IGNORECASE)))
    return tuple(patterns)


def take_services(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without its service phrases, and the tags they stand for."""
    tags = []
    for tag, pattern in _service_patterns():
        text, count = pattern.subn(" ", text)
        if count:
            tags.append(tag)
    return text, tuple(tags)


def take_type(text: str, world: str) -> tuple[str, str, str]:
    """The text without its type, the type's group and canonical name; "" when it names none.

    Of several types the longest wins, then the first.
    """
    pattern, known = type_words(world)
    found = max(pattern.finditer(text), key=lambda m: (len(m.group()), -m.start()), default=None)
    if found is None:
        return text, "", ""
    group, name = known[" ".join(found.group().split())]
    return text[: found.start()] + " | " + text[found.end() :], group, name


@cache
def carrier_words(world: str) -> frozenset[str]:
    """Words that name no product in a request of this world: fillers and what templates say.

    Product lines stay out: they are names wherever they stand.
    """
    return (filler_words() | template_words(world)) - set(line_words(world))


@cache
def _features(world: str, group: str) -> re.Pattern[str]:
    groups = [g for g in load_lexicon(world).groups if g.name == group]
    return alternation([f for g in groups for f in g.features] or ["\n"])


def take_features(text: str, world: str, group: str) -> tuple[str, tuple[str, ...]]:
    """The text without the title features of a group, and their words in order."""
    pattern = _features(world, group)
    words = tuple(word for found in pattern.findall(text) for word in found.split())
    return pattern.sub(" , ", text), words


def take_values(text: str, world: str, group: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text without its values, and (name, value) pairs in the order of the text."""
    words = group_words(world, group)
    pairs: dict[tuple[str, str], None] = {}
    for found in words.pattern.finditer(text):
        spoken = words.values[" ".join(found.group().split())]
        pairs[spoken.name, spoken.value] = None
    return words.pattern.sub(" , ", text), tuple(pairs)
