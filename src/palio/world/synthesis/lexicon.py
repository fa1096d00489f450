"""The words of a world: product types, their traits and values, and how each value is spoken."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from palio.records.base import CanonicalRecord, Record
from palio.records.faults import ConfigError

Holder = Literal["sku", "attribute"]
WORLDS = ("compact", "full")


class Trait(CanonicalRecord, frozen=True):
    """One property that products of a group have.

    Attributes:
        name: attribute or SKU option name, as it stands in the catalogue.
        holder: whether the value stands in the SKUs or in the attributes.
        prefix: whether a spoken value may stand before the product's name ("blue mug").
        phrases: templates of a spoken value after the name; `{v}` is the spoken value.
        values: catalogue value -> its spoken forms, unique inside the group.
        types: names of the types that have it; empty = all of the group.
    """

    name: str
    holder: Holder
    values: dict[str, tuple[str, ...]]
    prefix: bool = False
    phrases: tuple[str, ...] = ("{v}",)
    types: tuple[str, ...] = ()


class ProductType(Record, frozen=True):
    """A kind of product.

    Attributes:
        name: the words that stand in every title of this type, lower case.
        also: further keywords of the titles (keyword stuffing), never spoken.
        spoken: what requests call it besides `name`.
        leaf: the last steps of its category path.
        plural: whether its name is one, so that it takes no "a".
    """

    name: str
    also: tuple[str, ...] = ()
    spoken: tuple[str, ...] = ()
    leaf: str = ""
    plural: bool = False


class Group(CanonicalRecord, frozen=True):
    """Types that share traits, a price level and title vocabulary; prices in PHP."""

    name: str
    category: str
    price_median: float
    price_sigma: float
    types: tuple[ProductType, ...]
    traits: tuple[Trait, ...]
    article: str = "a"
    features: tuple[str, ...] = ()
    stuffing: tuple[str, ...] = ()


class Lexicon(Record, frozen=True):
    """All words of one world; `lines` are the product lines that stand in titles."""

    world: str
    lines: tuple[str, ...]
    groups: tuple[Group, ...]


def _shaped(raw: dict[str, Any]) -> dict[str, Any]:
    """TOML short forms spelled out: a list of values speaks each as itself, types keyed by name."""
    groups = []
    for group in raw["group"]:
        traits = []
        for trait in group.pop("trait"):
            values = trait["values"]
            if isinstance(values, list):
                values = {value: [value] for value in values}
            spoken = {value: forms or [value] for value, forms in values.items()}
            traits.append({**trait, "values": spoken})
        types = [{"name": name, **fields} for name, fields in group.pop("types").items()]
        groups.append({**group, "traits": traits, "types": types})
    return {"world": raw["world"], "lines": raw["lines"], "groups": groups}


@cache
def load_lexicon(world: str) -> Lexicon:
    """The lexicon of a world, read from the package's data.

    Raises:
        ConfigError: no such world.
    """
    if world not in WORLDS:
        raise ConfigError(f"no lexicon for world {world!r}", remedy=f"use one of {WORLDS}")
    folder = resources.files("palio.world.synthesis") / "lexicon"
    raw = tomllib.loads((folder / f"{world}.toml").read_text(encoding="utf-8"))
    return msgspec.convert(_shaped(raw), Lexicon)


@cache
def lexicon_words(world: str) -> frozenset[str]:
    """Every single word of a world's lexicon, lower case: no brand may be one of them."""
    lexicon = load_lexicon(world)
    texts = list(lexicon.lines)
    for group in lexicon.groups:
        texts += [*group.features, *group.stuffing]
        for kind in group.types:
            texts += [kind.name, *kind.also, *kind.spoken]
        for trait in group.traits:
            texts += [*trait.values, *(form for forms in trait.values.values() for form in forms)]
    return frozenset(word for text in texts for word in text.lower().split())
