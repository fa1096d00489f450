"""The rule of one wanted item: which of its units a product hits, exactly as the scorers count."""

from __future__ import annotations

import math
from typing import NamedTuple

from palio.judging.encoders import TitleEncoder
from palio.records.problem import PriceRange, Reward
from palio.records.product import Product
from palio.records.verdict import Profile

FIELDS = ("title", "price", "service", "sku & attrs")
"""Fields of a rule score, in the order of every score dictionary."""


class Wanted(NamedTuple):
    """A reward made ready for scoring many products.

    Attributes:
        ranges: inclusive (low, high) pairs, open sides infinite.
        pairs: every wanted (name, value), of SKU options and attributes alike.
    """

    product_id: str
    titles: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    services: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


class FieldCount(NamedTuple):
    """Units and hits of one product, in the order of `FIELDS`, and the rule score in [0, 1]."""

    rule: float
    totals: tuple[int, int, int, int]
    hits: tuple[int, int, int, int]


def wanted(reward: Reward) -> Wanted:
    """The units of a reward: one a title, range, service tag and (name, value) pair."""
    options = [pair for mapping in reward.sku_options for pair in mapping.items()]
    attributes = [
        (name, value)
        for mapping in reward.attributes
        for name, values in mapping.items()
        for value in values
    ]
    return Wanted(
        reward.product_id,
        reward.title,
        tuple(_bounds(price) for price in reward.price),
        reward.service,
        (*options, *attributes),
    )


def _bounds(price: PriceRange) -> tuple[float, float]:
    """Only the sides that the mode looks at; an absent bound is open."""
    low = -math.inf if price.low is None or price.mode == "less than" else price.low
    high = math.inf if price.high is None or price.mode == "greater than" else price.high
    return low, high


def count(product: Product, want: Wanted, profile: Profile, encoder: TitleEncoder) -> FieldCount:
    """Units and hits of `product` under a profile.

    The ground truth scores 1 at once: `upstream` then counts no unit at all, `oro` and `strict`
    count the fields with every title as a hit. A reward without any unit scores 0 otherwise.

    Raises:
        TitleUnavailableError: the title decides and the encoder has no vector for it.
    """
    truth = product.product_id == want.product_id
    if truth and profile == "upstream":
        return FieldCount(1.0, (0, 0, 0, 0), (0, 0, 0, 0))
    title_hits = len(want.titles) if truth else _title_hits(product, want, profile, encoder)
    price, service = product.price, product.service
    hits = (
        title_hits,
        sum([low <= price <= high for low, high in want.ranges]),
        sum([tag in service for tag in want.services]),
        _pair_hits(product, want.pairs),
    )
    totals = (len(want.titles), len(want.ranges), len(want.services), len(want.pairs))
    units = sum(totals)
    rule = 1.0 if truth else sum(hits) / units if units else 0.0
    return FieldCount(rule, totals, hits)


def _title_hits(product: Product, want: Wanted, profile: Profile, encoder: TitleEncoder) -> int:
    threshold = encoder.thresholds[profile]
    return sum([encoder.similarity(product.title, title) >= threshold for title in want.titles])


def _pair_hits(product: Product, pairs: tuple[tuple[str, str], ...]) -> int:
    """Pairs found in the attributes or in one single SKU, for the SKU that gives the most."""
    if not pairs:
        return 0
    attributes = product.attributes
    missing = [pair for pair in pairs if pair[1] not in attributes.get(pair[0], ())]
    found = len(pairs) - len(missing)
    if not missing or not product.sku_options:
        return found
    return found + max(
        [
            sum([sku.get(name) == value for name, value in missing])
            for sku in product.sku_options.values()
        ]
    )


def counters(counted: FieldCount, profile: Profile, *, truth: bool) -> tuple[dict[str, int], ...]:
    """The (total, hit) counters of the original scorers.

    "sku & attrs" always stands in both, the others stand in total only with units and in hit only
    when hit; a ground-truth match under `upstream` leaves both empty.
    """
    if truth and profile == "upstream":
        return {}, {}
    total = {
        name: units
        for name, units in zip(FIELDS, counted.totals, strict=True)
        if units or name == "sku & attrs"
    }
    hit = {
        name: units
        for name, units in zip(FIELDS, counted.hits, strict=True)
        if units or name == "sku & attrs"
    }
    return total, hit
