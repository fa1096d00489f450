"""A wish becomes a sentence through a paraphrase bank; banks are data, one file a world."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from palio.records import PriceRange, Voucher
from palio.records.base import CanonicalRecord, Record
from palio.records.faults import ConfigError
from palio.world.synthesis.draft import Wish
from palio.world.synthesis.lexicon import WORLDS, lexicon_words, load_lexicon

_PLACE = re.compile(r"\{\w*\}")
_NO_WORD = re.compile(r"[^a-z0-9'-]+")
PRICE_MODES = {"less than": "less", "greater than": "greater", "between": "between"}


class Enumeration(Record, frozen=True):
    """How several items stand in one sentence: what leads each, what joins them."""

    leads: tuple[str, ...]
    join: str


class Several(Record, frozen=True):
    """A template for several items; `{opener}` and `{items}`, the items in a style."""

    text: str
    style: str


class VoucherWording(Record, frozen=True):
    """Templates of the voucher's rules; `text` holds budget, threshold, scope and discount."""

    text: tuple[str, ...]
    scope: dict[str, tuple[str, ...]]
    discount: dict[str, tuple[str, ...]]


class Bank(CanonicalRecord, frozen=True):
    """One way of talking.

    Attributes:
        prefix_share: probability that a trait which may stand before the name does.
        core: "brand", "line" or "brand_line" -> templates of the product's name.
        phrases: trait name -> templates that replace the lexicon's.
        price, service: templates that replace the common ones.
        currency: templates of one amount, "{amount}" alone where there is no currency.
        capital: sentences and brands start with a capital letter.
        use: "usual": drawn from unless a world names its banks; "named": only where it is named;
            "measuring": only where it is named, and never to train on, so that a policy can be
            asked in words that no training problem has.
    """

    id: str
    prefix_share: float
    glue_first: str
    glue: str
    openers: tuple[str, ...]
    single: tuple[str, ...]
    shop: tuple[Several, ...]
    several: tuple[Several, ...]
    core: dict[str, tuple[str, ...]]
    voucher: VoucherWording
    phrases: dict[str, tuple[str, ...]] = {}
    price: dict[str, tuple[str, ...]] = {}
    service: dict[str, tuple[str, ...]] = {}
    feature: tuple[str, ...] = ("{v}",)
    currency: tuple[str, ...] = ("{amount}",)
    capital: bool = False
    use: Literal["usual", "named", "measuring"] = "usual"


class Phrases(Record, frozen=True):
    """What all banks share."""

    price: dict[str, tuple[str, ...]]
    service: dict[str, tuple[str, ...]]
    enumeration: dict[str, Enumeration]


def _read(name: str) -> str:
    folder = resources.files("palio.world.synthesis") / "wording"
    return (folder / name).read_text(encoding="utf-8")


@cache
def common_phrases() -> Phrases:
    """Price, service and enumeration phrases of all banks."""
    return msgspec.convert(tomllib.loads(_read("common.toml")), Phrases)


@cache
def load_banks(world: str) -> tuple[Bank, ...]:
    """The paraphrase banks of a world, in file order.

    Raises:
        ConfigError: no such world.
    """
    if world not in WORLDS:
        raise ConfigError(f"no paraphrase banks for world {world!r}", remedy=f"one of {WORLDS}")
    return msgspec.convert(tomllib.loads(_read(f"{world}.toml"))["bank"], tuple[Bank, ...])


def chosen_banks(world: str, ids: tuple[str, ...]) -> tuple[Bank, ...]:
    """The banks with these ids; when empty, the world's usual ones.

    Raises:
        ConfigError: the world has no bank of that id.
    """
    banks = {bank.id: bank for bank in load_banks(world)}
    unknown = [name for name in ids if name not in banks]
    if unknown:
        raise ConfigError(
            f"world {world!r} has no paraphrase bank {unknown[0]!r}",
            remedy=f"use some of: {', '.join(banks)}",
        )
    if ids:
        return tuple(banks[name] for name in ids)
    return tuple(bank for bank in banks.values() if bank.use == "usual")


def banks_for(world: str, *uses: str) -> tuple[str, ...]:
    """Ids of the banks of a world that have one of these uses, in file order.

    Raises:
        ConfigError: no such world.
    """
    return tuple(bank.id for bank in load_banks(world) if bank.use in uses)


@cache
def filler_words() -> frozenset[str]:
    """Words of requests that name no product: never a brand, dropped by the reader."""
    return frozenset(_read("fillers.txt").split())


def money(amount: float) -> str:
    """An amount as requests write it: integral without a fraction."""
    return str(int(amount)) if float(amount).is_integer() else f"{amount:.2f}"


def write_request(
    rng: random.Random, bank: Bank, wishes: list[Wish], *, shop: bool, voucher: Voucher | None
) -> str:
    """The request in a bank's wording; `shop` asks for one shop, a voucher adds its rules."""
    items = [_item(rng, bank, wish) for wish in wishes]
    opener = rng.choice(bank.openers)
    if len(items) == 1:
        text = rng.choice(bank.single).format(opener=opener, item=items[0])
    else:
        several = rng.choice(bank.shop if shop else bank.several)
        style = common_phrases().enumeration[several.style]
        listed = style.join.join(
            lead + item for lead, item in zip(style.leads, items, strict=False)
        )
        text = several.text.format(opener=opener, items=listed)
    if bank.capital:
        text = _capitalised(text)
    return text + _voucher(rng, bank, voucher) if voucher else text


def _capitalised(text: str) -> str:
    sentences = text.split(". ")
    return ". ".join(part[:1].upper() + part[1:] for part in sentences)


def _item(rng: random.Random, bank: Bank, wish: Wish) -> str:
    before: list[str] = []
    after: list[str] = []
    for wanted in wish.traits:
        if wanted.trait.prefix and rng.random() < bank.prefix_share:
            before.append(wanted.spoken)
        else:
            templates = bank.phrases.get(wanted.trait.name, wanted.trait.phrases)
            after.append(rng.choice(templates).format(v=wanted.spoken))
    after += [rng.choice(bank.feature).format(v=feature) for feature in wish.features]
    if wish.price is not None:
        after.append(_price(rng, bank, wish.price))
    phrases = {**common_phrases().service, **bank.service}
    after += [rng.choice(phrases[tag]) for tag in wish.services]
    rng.shuffle(before)
    rng.shuffle(after)
    head = " ".join([*before, _core(rng, bank, wish)])
    article = wish.family.group.article
    if wish.family.kind.plural and article == "a":
        article = ""
    return _article(article, head) + head + _tail(bank, after)


def _core(rng: random.Random, bank: Bank, wish: Wish) -> str:
    family = wish.family
    key = "_".join(name for name in ("brand", "line") if getattr(wish, name))
    kind = rng.choice((family.kind.name, *family.kind.spoken))
    brand, line = family.brand, family.line
    if bank.capital:
        brand, line = brand.capitalize(), line.capitalize()
    return rng.choice(bank.core[key]).format(brand=brand, line=line, type=kind)


def _article(article: str, head: str) -> str:
    if article == "a" and head[0].lower() in "aeiou":
        article = "an"
    return f"{article} " if article else ""


def _tail(bank: Bank, after: list[str]) -> str:
    return bank.glue_first + bank.glue.join(after) if after else ""


def _price(rng: random.Random, bank: Bank, price: PriceRange) -> str:
    mode = PRICE_MODES[price.mode]
    templates = bank.price.get(mode) or common_phrases().price[mode]
    currency = rng.choice(bank.currency)
    amounts = {
        name: currency.format(amount=money(value))
        for name, value in (("low", price.low), ("high", price.high))
        if value is not None
    }
    return rng.choice(templates).format(**amounts)


def _voucher(rng: random.Random, bank: Bank, voucher: Voucher) -> str:
    words = bank.voucher
    value = voucher.face_value if voucher.discount is None else round(voucher.discount * 100)
    discount = rng.choice(words.discount[voucher.discount_type]).format(
        value=money(value or 0), cap=money(voucher.cap or 0)
    )
    scope = rng.choice(words.scope[voucher.voucher_type])
    return _joined(rng.choice(words.text)).format(
        budget=money(voucher.budget),
        threshold=money(voucher.threshold),
        discount=discount,
        scope=scope,
    )


def _joined(rules: str) -> str:
    return rules if rules[0].isspace() else f" {rules}"


@cache
def template_words(world: str) -> frozenset[str]:
    """Every word of a world's templates: what requests say besides names, values and amounts."""
    lexicon = load_lexicon(world)
    texts = [phrase for g in lexicon.groups for trait in g.traits for phrase in trait.phrases]
    texts += ["an", *(g.article for g in lexicon.groups)]
    for bank in load_banks(world):
        texts += [*bank.openers, *bank.single, *(s.text for s in (*bank.shop, *bank.several))]
        texts += [*bank.voucher.text, *bank.currency, *bank.feature]
        rules = bank.voucher
        named = [bank.core, bank.phrases, bank.price, bank.service, rules.scope, rules.discount]
        texts += [text for group in named for forms in group.values() for text in forms]
    common = common_phrases()
    for forms in (*common.price.values(), *common.service.values()):
        texts += forms
    texts += [lead for style in common.enumeration.values() for lead in style.leads]
    return frozenset(_words_of(texts))


@cache
def request_words(world: str) -> tuple[str, ...]:
    """Every word that requests, titles and values of a world hold, brands and numbers apart."""
    words = lexicon_words(world) | template_words(world)
    names = {trait.name for group in load_lexicon(world).groups for trait in group.traits}
    return tuple(sorted(words | names))


def _words_of(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        bare = _NO_WORD.sub(" ", _PLACE.sub(" ", text).lower())
        yield from (word for word in bare.split() if not word.isdigit())
