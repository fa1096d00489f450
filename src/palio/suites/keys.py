"""Two problems with an equal key are one problem in disguise: product, specification, text, family.

Each function turns one problem into the keys of one rule. Clusters join problems that share a key,
and the check of the finished pools compares the same keys, computed again from the rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from palio.records import Problem, Reward, digest

_SPACE = re.compile(r"\s+")


def normalise_text(text: str) -> str:
    """NFKC, lower case, invisible format characters dropped, white space folded to one space.

    Applied until nothing changes, since lower case can undo a normal form ("İ"): the result is a
    fixed point, so equal keys stay equal however often they are normalised.
    """
    if text.isascii():  # no normal form, no invisible characters: 1 us where the loop takes 60
        return " ".join(text.lower().split())
    while True:
        folded = unicodedata.normalize("NFKC", text).lower()
        visible = "".join(char for char in folded if unicodedata.category(char) != "Cf")
        folded = _SPACE.sub(" ", visible).strip()
        if folded == text:
            return folded
        text = folded


def text_key(problem: Problem) -> str:
    """The normalised query; "" for a query without a visible character, which matches nothing."""
    return normalise_text(problem.query)


def product_keys(problem: Problem) -> tuple[str, ...]:
    """One key a ground-truth product; ids of different catalogues are different products."""
    ids = sorted({reward.product_id for reward in problem.rewards if reward.product_id})
    space = f"{problem.catalogue}/" if problem.catalogue else ""
    return tuple(f"{space}{product_id}" for product_id in ids)


def family_keys(problem: Problem) -> tuple[str, ...]:
    """One key a title family of the targets; decoys of a target share its family."""
    return tuple(sorted({normalise_text(family) for family in problem.families if family}))


def _item(reward: Reward) -> list[list[str]]:
    """One wanted item in canonical form; every list sorted, unit groups flattened."""
    options = {
        (normalise_text(k), normalise_text(v)) for o in reward.sku_options for k, v in o.items()
    }
    attributes = {
        (normalise_text(name), normalise_text(value))
        for group in reward.attributes
        for name, values in group.items()
        for value in values
    }
    prices = {f"{_amount(price.low)}..{_amount(price.high)}" for price in reward.price}
    return [
        sorted(normalise_text(title) for title in reward.title),
        sorted(f"{name}={value}" for name, value in options),
        sorted(f"{name}={value}" for name, value in attributes),
        sorted(normalise_text(service) for service in reward.service),
        sorted(prices),
    ]


def _amount(value: float | None) -> str:
    return "" if value is None else format(float(value), ".10g")


def spec_key(problem: Problem) -> str:
    """Digest of the canonical reward specification, "" where an item specifies nothing.

    Product ids are left out (the product rule has them), and so is the voucher: the same wishes
    under a re-expressed voucher are the same specification.
    """
    items = sorted(_item(reward) for reward in problem.rewards)
    if not items or not all(any(part for part in item) for item in items):
        return ""
    return digest(items)


def keys_of(problem: Problem, rule: str) -> tuple[str, ...]:
    """The keys of `problem` under a rule of `RULES`; empty keys are left out."""
    found = _KEYS[rule](problem)
    return tuple(key for key in found if key)


_KEYS: dict[str, Callable[[Problem], tuple[str, ...]]] = {
    "problem": lambda problem: (problem.problem_id,),
    "product": product_keys,
    "spec": lambda problem: (spec_key(problem),),
    "text": lambda problem: (text_key(problem),),
    "family": family_keys,
}

RULES = tuple(_KEYS)
"""The rules by which two problems may be the same one."""
