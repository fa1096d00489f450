"""Brands are invented from syllables, per catalogue, so a new catalogue has unseen brands."""

from __future__ import annotations

import random
from collections.abc import Container

ONSETS = tuple("b br d dr f fl g gr j k kl l m n p r s st t tr v z".split())  # noqa: SIM905
RIMES = tuple("a e i o u ai or en ix um".split())  # noqa: SIM905
SYLLABLES = tuple(onset + rime for onset in ONSETS for rime in RIMES)
"""220 pieces; a brand is two or three of them: 48,000 short and 10 million long brands."""


def invent_brands(count: int, seed: int, taken: Container[str]) -> list[str]:
    """`count` different lower-case brands, a pure function of the arguments.

    Args:
        count: how many.
        seed: decides which.
        taken: words that are no brand, such as the lexicon's.
    """
    rng = random.Random(f"brands-{seed}")
    brands: dict[str, None] = {}
    while len(brands) < count:
        length = 2 if rng.random() < 2 / 3 else 3
        brand = "".join(rng.choice(SYLLABLES) for _ in range(length))
        if brand not in taken:
            brands[brand] = None
    return list(brands)
