"""One configuration gives one catalogue with its problems, hard decoys and composition."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from palio.records import Problem, Product
from palio.records.base import Record
from palio.world.catalogue import Catalogue
from palio.world.search import SearchIndex, SearchSpec
from palio.world.synthesis.baskets import Basket, product_basket, shop_basket, voucher_basket
from palio.world.synthesis.config import SynthesisConfig
from palio.world.synthesis.draft import Wish
from palio.world.synthesis.publish import (
    Names,
    decoy_kind,
    publish_problem,
    publish_product,
    voucher_kind,
)
from palio.world.synthesis.stock import Stock
from palio.world.synthesis.wording import chosen_banks


class Decoy(Record, frozen=True):
    """A product made to mislead: which problem and item, and the one constraint it violates.

    Attributes:
        violates: "trait:<name>", "service:<tag>", "price", "budget", or "shop" for a product that
            fits but stands in a shop that cannot serve the whole request.
    """

    product_id: str
    problem_id: str
    item: int
    violates: str


class Synthesis:
    """A synthetic world.

    Attributes:
        families: product id -> title family, for every product of the catalogue.
        decoys: every hard decoy.
        composition: counts for people: kinds, constraints, decoys, banks, difficulty.
    """

    def __init__(
        self,
        config: SynthesisConfig,
        catalogue: Catalogue,
        problems: tuple[Problem, ...],
        families: dict[str, str],
        decoys: tuple[Decoy, ...],
        composition: dict[str, dict[str, float]],
    ) -> None:
        self.config = config
        self.catalogue = catalogue
        self.problems = problems
        self.families = families
        self.decoys = decoys
        self.composition = composition


def synthesise(config: SynthesisConfig, *, index: SearchIndex | None = None) -> Synthesis:
    """Make a world: 1,500 compact products with 300 problems take about a second.

    Args:
        config: what to make.
        index: an index of the same catalogue built before, to decide reachability with.

    Raises:
        ConfigError: the problems do not fit into the catalogue, or a bank is unknown.
    """
    stock = Stock.open(config)
    baskets = _baskets(stock)
    stock.fill()
    names = Names(config, len(stock.drafts), stock.shops)
    compact = config.world == "compact"
    products = [publish_product(draft, names, compact=compact) for draft in stock.drafts]
    catalogue = Catalogue.from_products(config.name, products, config.world)
    ids = _problem_ids(config, baskets)
    problems = _problems(config, baskets, ids, names, catalogue)
    search = index or SearchIndex.build(catalogue, SearchSpec(pool=config.pool))
    problems = [
        _with_reachability(problem, basket.wishes, search)
        for problem, basket in zip(problems, baskets, strict=True)
    ]
    return Synthesis(
        config=config,
        catalogue=catalogue,
        problems=tuple(problems),
        families={names.product(draft): draft.family.slug for draft in stock.drafts},
        decoys=tuple(
            Decoy(names.product(d.draft), problem_id, d.item, d.violates)
            for problem_id, basket in zip(ids, baskets, strict=True)
            for d in basket.decoys
        ),
        composition=_composition(baskets, problems),
    )


def _baskets(stock: Stock) -> list[Basket]:
    config = stock.config
    plan: list[tuple[int, Callable[[Stock], Basket]]] = [
        (config.product_problems, product_basket),
        (config.shop_problems, shop_basket),
        (config.voucher_problems, voucher_basket),
    ]
    return [make(stock) for count, make in plan for _ in range(count)]


def _problem_ids(config: SynthesisConfig, baskets: list[Basket]) -> list[str]:
    seen: Counter[str] = Counter()
    ids = []
    for basket in baskets:
        seen[basket.kind] += 1
        ids.append(f"{config.name}-{basket.kind}-{seen[basket.kind]:04d}")
    return ids


def _problems(
    config: SynthesisConfig,
    baskets: list[Basket],
    ids: list[str],
    names: Names,
    catalogue: Catalogue,
) -> list[Problem]:
    rng = random.Random(f"wording-{config.seed}")
    banks = chosen_banks(config.world, config.banks)
    problems = []
    for basket, problem_id in zip(baskets, ids, strict=True):
        bank = rng.choice(banks)
        problem = publish_problem(rng, basket, bank, problem_id, config.name, names)
        problems.append(_with_titles(problem, catalogue.products))
    return problems


def _with_titles(problem: Problem, products: dict[str, Product]) -> Problem:
    rewards = tuple(
        msgspec.structs.replace(reward, title=(products[reward.product_id].title,))
        for reward in problem.rewards
    )
    return msgspec.structs.replace(problem, rewards=rewards)


def _with_reachability(problem: Problem, wishes: list[Wish], search: SearchIndex) -> Problem:
    """Whether the request verbatim, or the words that it says of an item, find each target.

    The words are tried with the request's filters, alone and with the wanted values.
    """
    verbatim = set(search.ranked(problem.query))
    reachable = all(
        reward.product_id in verbatim or _found(search, wish, reward.product_id)
        for reward, wish in zip(problem.rewards, wishes, strict=True)
    )
    return msgspec.structs.replace(problem, reachable=reachable)


def _found(search: SearchIndex, wish: Wish, product_id: str) -> bool:
    words = " ".join(wish_words(wish))
    price = (wish.price.low, wish.price.high) if wish.price else None
    values = " ".join(wanted.spoken for wanted in wish.traits)
    return any(
        product_id in search.ranked(query, price=price, services=wish.services)
        for query in (words, f"{words} {values}")
    )


def wish_words(wish: Wish) -> tuple[str, ...]:
    """The title words that a request with this wish mentions: brand, line, type, features."""
    family = wish.family
    parts = [family.brand] if wish.brand else []
    parts += [family.line] if wish.line else []
    parts += [*family.kind.name.split(), *(w for f in wish.features for w in f.split())]
    return tuple(parts)


def _composition(baskets: list[Basket], problems: list[Problem]) -> dict[str, dict[str, float]]:
    kinds = Counter(basket.kind for basket in baskets)
    shares: Counter[str] = Counter()
    for basket in baskets:
        for kind in {decoy_kind(decoy.violates) for decoy in basket.decoys}:
            shares[kind] += 1
    return {
        "problems": {kind: kinds[kind] for kind in sorted(kinds)},
        "items": _counted(len(basket.wishes) for basket in baskets),
        "constraints an item": _counted(
            len(wish.constraints()) for basket in baskets for wish in basket.wishes
        ),
        "constraint kinds": _counted(
            decoy_kind(name)
            for basket in baskets
            for wish in basket.wishes
            for name in wish.constraints()
        ),
        "share of problems with a decoy that violates": {
            kind: round(count / len(baskets), 3) for kind, count in sorted(shares.items())
        },
        "vouchers": _counted(voucher_kind(b.voucher) for b in baskets if b.voucher),
        "banks": _counted(problem.bank for problem in problems),
        "difficulty": _counted(problem.difficulty for problem in problems),
        "reachable": _counted(str(problem.reachable).lower() for problem in problems),
    }


def _counted(values: Iterable[int | str]) -> dict[str, float]:
    return {str(key): count for key, count in sorted(Counter(values).items())}
