"""One configuration decides a synthetic world; its digest and seed reproduce it byte for byte."""

from __future__ import annotations

from typing import Literal

from palio.records.base import CanonicalRecord
from palio.records.faults import ConfigError

GENERATOR_VERSION = "1"
"""Raised whenever equal configurations would give other products or problems than before."""


class ItemMix(CanonicalRecord, frozen=True):
    """How much a request says of one item; probabilities in [0, 1].

    Attributes:
        line: probability that the product line is mentioned beside the brand.
        brand: probability that the brand is mentioned; without it the line always is.
        feature: probability that title features are mentioned (worlds that have features).
        traits: weights of mentioning 0, 1, 2 ... traits.
        price: probability of a price range.
        service: probability of each service that the product has.
        max_services: at most so many services are mentioned.
        decoys: hard decoys of one item, beside shop decoys.
        spread: probability that a draw with neither price nor service is drawn again, since such
            a request is the easiest for plain search.
    """

    traits: tuple[float, ...]
    line: float = 0.5
    brand: float = 1.0
    feature: float = 0.0
    price: float = 0.5
    service: float = 0.3
    max_services: int = 1
    decoys: int = 4
    spread: float = 0.0


class SynthesisConfig(CanonicalRecord, frozen=True):
    """A synthetic world. Use `compact_config` or `full_config` and change fields.

    Attributes:
        products: size of the catalogue, decoys included.
        product_problems, shop_problems, voucher_problems: problems of each kind.
        brand_seed: seed of the brands; None = `seed`.
        shop_items: weights of 2, 3, 4 items in a shop problem.
        voucher_items: weights of 1, 2, 3, 4 items in a voucher problem.
        shop_vouchers: share of "shop" vouchers among those with two items or more.
        banks: ids of the paraphrase banks to draw from; empty = the world's usual ones.
        pool: result pool of the search that decides reachability.
    """

    world: Literal["compact", "full"]
    seed: int
    products: int
    product_problems: int
    shop_problems: int
    voucher_problems: int
    product: ItemMix
    shop: ItemMix
    voucher: ItemMix
    shop_items: tuple[float, ...] = (1.0,)
    voucher_items: tuple[float, ...] = (1.0,)
    shop_vouchers: float = 0.5
    shop_decoys: int = 1
    sku_limit: int = 1
    trait_presence: float = 1.0
    products_a_brand: int = 12
    products_a_shop: int = 16
    brand_seed: int | None = None
    banks: tuple[str, ...] = ()
    pool: int = 50
    catalogue_id: str = ""
    generator: str = GENERATOR_VERSION

    @property
    def name(self) -> str:
        """Id of the catalogue, "compact-7" unless the configuration says otherwise."""
        return self.catalogue_id or f"{self.world}-{self.seed}"

    @property
    def problems(self) -> int:
        """How many problems of all kinds."""
        return self.product_problems + self.shop_problems + self.voucher_problems


def split_evenly(problems: int) -> tuple[int, int, int]:
    """Counts of product, shop and voucher problems for a total; a remainder goes to the first."""
    third = problems // 3
    return problems - 2 * third, third, third


def _checked(config: SynthesisConfig) -> SynthesisConfig:
    if min(config.products, config.product_problems, config.shop_problems) < 0:
        raise ConfigError("counts of products and problems must not be negative")
    if config.world == "compact" and config.products > 7000:
        raise ConfigError(
            f"a compact world has 4-digit ids, so {config.products} products do not fit",
            remedy="use at most 7000 products, or several catalogues with other seeds",
        )
    return config


def compact_config(
    seed: int,
    *,
    products: int = 1_500,
    problems: int = 300,
    counts: tuple[int, int, int] | None = None,
    brand_seed: int | None = None,
    banks: tuple[str, ...] = (),
) -> SynthesisConfig:
    """The compact world: short titles, 4-digit ids, integer prices, one SKU, 1-2 items.

    Args:
        seed: decides everything.
        products: size of the catalogue, at most 7,000.
        problems: total over the three kinds, split evenly.
        counts: numbers of product, shop and voucher problems; wins over `problems`.
        brand_seed: seed of the brands alone, `seed` when None.
        banks: paraphrase banks to draw from; empty = the world's usual ones.
    """
    product, shop, voucher = counts or split_evenly(problems)
    config = SynthesisConfig(
        world="compact",
        seed=seed,
        products=products,
        product_problems=product,
        shop_problems=shop,
        voucher_problems=voucher,
        product=ItemMix(
            traits=(0.0, 0.55, 0.35, 0.1), line=0.5, price=0.6, service=0.3, decoys=4, spread=0.85
        ),
        shop=ItemMix(traits=(0.4, 0.6), line=0.4, price=0.2, service=0.1, decoys=1),
        voucher=ItemMix(traits=(0.2, 0.6, 0.2), line=0.5, price=0.0, service=0.15, decoys=3),
        shop_items=(1.0,),
        voucher_items=(1.0,),
        brand_seed=brand_seed,
        banks=banks,
    )
    return _checked(config)


def full_config(
    seed: int,
    *,
    products: int = 10_000,
    problems: int = 1_000,
    counts: tuple[int, int, int] | None = None,
    brand_seed: int | None = None,
    banks: tuple[str, ...] = (),
) -> SynthesisConfig:
    """The Lazada-like world: keyword-stuffed titles, several SKUs, 1-4 items.

    Arguments as in `compact_config`.
    """
    product, shop, voucher = counts or split_evenly(problems)
    config = SynthesisConfig(
        world="full",
        seed=seed,
        products=products,
        product_problems=product,
        shop_problems=shop,
        voucher_problems=voucher,
        product=ItemMix(
            traits=(0.05, 0.3, 0.35, 0.2, 0.1),
            line=0.5,
            brand=0.7,
            feature=0.5,
            price=0.55,
            service=0.4,
            max_services=2,
            decoys=5,
            spread=0.8,
        ),
        shop=ItemMix(
            traits=(0.2, 0.5, 0.3),
            line=0.5,
            brand=0.7,
            feature=0.4,
            price=0.4,
            service=0.25,
            decoys=1,
        ),
        voucher=ItemMix(
            traits=(0.2, 0.5, 0.3),
            line=0.5,
            brand=0.7,
            feature=0.4,
            price=0.0,
            service=0.25,
            decoys=2,
        ),
        shop_items=(0.4, 0.3, 0.3),
        voucher_items=(0.25, 0.25, 0.25, 0.25),
        sku_limit=9,
        trait_presence=0.8,
        products_a_brand=20,
        products_a_shop=25,
        brand_seed=brand_seed,
        banks=banks,
    )
    return _checked(config)


def preset(
    name: str, seed: int, *, products: int = 0, problems: int = 0, banks: tuple[str, ...] = ()
) -> SynthesisConfig:
    """The preset "compact" or "full"; a size of 0 takes the preset's own.

    Raises:
        ConfigError: no such preset.
    """
    presets = {"compact": compact_config, "full": full_config}
    if name not in presets:
        raise ConfigError(f"no world is named {name!r}", remedy=f"one of {', '.join(presets)}")
    usual = {"compact": (1_500, 300), "full": (10_000, 1_000)}[name]
    return presets[name](
        seed, products=products or usual[0], problems=problems or usual[1], banks=banks
    )
