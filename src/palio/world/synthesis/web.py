"""Web problems: the request hides a brand behind a fact that only the world's documents tell."""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from palio.records import ConfigError, Problem, Reward
from palio.records.base import CanonicalRecord, Record
from palio.world.catalogue import Catalogue
from palio.world.documents import Document
from palio.world.search import SearchIndex
from palio.world.synthesis.brands import invent_brands
from palio.world.synthesis.config import compact_config, full_config
from palio.world.synthesis.lexicon import lexicon_words
from palio.world.synthesis.synthesise import Synthesis, synthesise

WEB_VERSION = "1"
"""Raised whenever equal configurations would give other documents or problems than before."""
SELLERS = 5
"""Brands that must sell a type before it is asked for, else the type alone tells the brand: with 3
a first hit for the request was right in 28 % of 40 problems, with 5 in 12 % of 60."""


class WebConfig(CanonicalRecord, frozen=True):
    """A world for web problems.

    Attributes:
        products: size of the catalogue, which is generated as for other problems.
        problems: web problems.
        others: companies that sell nothing here, for each brand of the catalogue.
        two_hops: share of problems whose answer needs two documents.
    """

    seed: int
    world: Literal["compact", "full"] = "full"
    products: int = 1_000
    problems: int = 100
    others: float = 1.0
    two_hops: float = 0.4
    generator: str = WEB_VERSION

    @property
    def name(self) -> str:
        """Id of the catalogue and of the suite, e.g. "web-full-7"."""
        return f"web-{self.world}-{self.seed}"


class WebSynthesis(Record, frozen=True):
    """A world for web problems: `base` holds catalogue and families, and no problem."""

    config: WebConfig
    base: Any
    documents: tuple[Document, ...]
    problems: tuple[Problem, ...]

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue with its documents."""
        made: Catalogue = self.base.catalogue
        return made


class _Question(Record, frozen=True):
    id: str
    hops: int
    text: tuple[str, ...]


class _Wording(Record, frozen=True):
    """``wording/web.toml``."""

    colours: tuple[str, ...]
    emblems: tuple[str, ...]
    prizes: tuple[str, ...]
    trades: tuple[str, ...]
    rivers: tuple[str, ...]
    features: tuple[str, ...]
    company: dict[str, tuple[str, ...]]
    person: dict[str, tuple[str, ...]]
    town: dict[str, tuple[str, ...]]
    question: tuple[_Question, ...]
    wish: dict[str, tuple[str, ...]]


@cache
def _wording() -> _Wording:
    folder = resources.files("palio.world.synthesis") / "wording"
    text = (folder / "web.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Wording)


def synthesise_web(config: WebConfig) -> WebSynthesis:
    """Make a catalogue, documents about its brands, and problems: 1,000 products take a second.

    Raises:
        ConfigError: the catalogue is too small for so many problems.
    """
    make = compact_config if config.world == "compact" else full_config
    shape = make(config.seed, products=config.products, problems=0)
    base = synthesise(msgspec.structs.replace(shape, catalogue_id=config.name))
    rng = random.Random(f"web-{config.seed}")
    brands = sorted({family.split()[0] for family in base.families.values()})
    companies = _companies(config, rng, brands)
    documents = _documents(rng, companies)
    problems = _problems(config, rng, base, {each["slug"]: each for each in companies})
    base.catalogue.documents = documents
    return WebSynthesis(config=config, base=base, documents=documents, problems=problems)


def _companies(config: WebConfig, rng: random.Random, brands: list[str]) -> list[dict[str, str]]:
    """Facts of each company: no two share an emblem, a founder, a place and year, or a prize."""
    wording = _wording()
    taken = lexicon_words(config.world) | set(brands)
    count = len(brands) + round(config.others * len(brands))
    towns = max(2, count // 3)
    words = invent_brands(count * 3 + towns, config.seed + 1_000_003, taken)
    names, firsts, lasts = words[:count], words[count : 2 * count], words[2 * count : 3 * count]
    towns_held = [word.capitalize() for word in words[3 * count :]]
    emblems = [f"{c} {e}" for c in wording.colours for e in wording.emblems]
    prizes = [(prize, str(year)) for prize in wording.prizes for year in range(1890, 1990)]
    if count > min(len(emblems), len(prizes)):
        raise ConfigError(
            f"{count} companies need more facts than there are",
            remedy=f"use a smaller catalogue: at most {len(emblems)} companies",
        )
    places = rng.sample([(t, str(y)) for t in towns_held for y in range(1900, 1990)], count)
    held = zip(rng.sample(emblems, count), rng.sample(prizes, count), places, strict=True)
    companies = []
    for place, (emblem, prize, (town, year)) in enumerate(held):
        slug = brands[place] if place < len(brands) else names[place]
        companies.append(
            {
                "slug": slug,
                "brand": slug.capitalize(),
                "founder": f"{firsts[place].capitalize()} {lasts[place].capitalize()}",
                "emblem": emblem,
                "prize": prize[0],
                "prize_year": prize[1],
                "town": town,
                "year": year,
                "trade": rng.choice(wording.trades),
                "birthplace": rng.choice(towns_held),
            }
        )
    return companies


def _documents(rng: random.Random, companies: list[dict[str, str]]) -> tuple[Document, ...]:
    """A page of each company, founder and town, in an order that tells nothing."""
    wording = _wording()
    pages = []
    for facts in companies:
        kinds = ("opening", "founding", "emblem", "closing")
        text = " ".join(rng.choice(wording.company[kind]) for kind in kinds).format(**facts)
        pages.append((rng.choice(wording.company["title"]).format(**facts), text))
        title, life = (rng.choice(wording.person[kind]) for kind in ("title", "text"))
        pages.append((title.format(**facts), life.format(**facts)))
    for town in sorted({facts["town"] for facts in companies}):
        about = {
            "town": town,
            "river": rng.choice(wording.rivers),
            "feature": rng.choice(wording.features),
        }
        title, text = (rng.choice(wording.town[kind]) for kind in ("title", "text"))
        pages.append((title.format(**about), text.format(**about)))
    rng.shuffle(pages)
    return tuple(
        Document(title=title, text=text, url=f"https://web.example/{place:05d}")
        for place, (title, text) in enumerate(pages, 1)
    )


def _problems(
    config: WebConfig, rng: random.Random, base: Synthesis, companies: dict[str, dict[str, str]]
) -> tuple[Problem, ...]:
    families = _askable(base)
    if config.problems > len(families):
        raise ConfigError(
            f"this catalogue bears {len(families)} web problems, not {config.problems}",
            remedy="use more products, or fewer problems",
        )
    wording = _wording()
    index = SearchIndex.build(base.catalogue)
    members: dict[str, list[str]] = {}
    for product_id, family in base.families.items():
        members.setdefault(family, []).append(product_id)
    made = []
    for number, family in enumerate(rng.sample(families, config.problems), 1):
        brand, _, kind = family.split(" ", 2)
        hops = 2 if rng.random() < config.two_hops else 1
        question = rng.choice([each for each in wording.question if each.hops == hops])
        asked = rng.choice(question.text).format(**companies[brand])
        wish = rng.choice(wording.wish["text"]).format(kind=kind)
        target = base.catalogue.products[rng.choice(sorted(members[family]))]
        found = index.ranked(f"{brand} {kind}")
        made.append(
            Problem(
                problem_id=f"{config.name}-{number:04d}",
                kind="web",
                query=f"{asked} {wish}",
                rewards=(Reward(product_id=target.product_id, title=(target.title,)),),
                knowledge=companies[brand]["brand"],
                difficulty="easy" if hops == 1 else "hard",
                reachable=target.product_id in found,
                families=(family,),
                bank=f"web-{question.id}",
                catalogue=config.name,
                title=kind,
            )
        )
    return tuple(made)


def _askable(base: Synthesis) -> list[str]:
    """Families that brand and type name alone, of types that several brands sell."""
    families = sorted(set(base.families.values()))
    named = Counter((family.split()[0], family.split(" ", 2)[2]) for family in families)
    sellers = Counter(kind for _, kind in named)
    return [
        family
        for family in families
        if named[family.split()[0], family.split(" ", 2)[2]] == 1
        and sellers[family.split(" ", 2)[2]] >= SELLERS
    ]
