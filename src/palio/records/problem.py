"""A shopping problem: what the agent is asked, and the reward specification it never sees."""

from __future__ import annotations

from typing import Literal

import msgspec

from palio.records.base import CanonicalRecord, Record, current_schema, digest

Kind = Literal["product", "shop", "voucher", "web"]
KINDS: tuple[Kind, ...] = ("product", "shop", "voucher", "web")
PriceMode = Literal["less than", "greater than", "between"]


class PriceRange(Record, frozen=True):
    """An inclusive price constraint in PHP; an open side is None."""

    mode: PriceMode
    low: float | None = None
    high: float | None = None


class Reward(Record, frozen=True):
    """What one wanted item must satisfy.

    Attributes:
        title: accepted titles, each one unit of the title term.
        sku_options: wanted (option, value) pairs, one mapping a unit group.
        attributes: wanted attribute -> accepted values, one mapping a unit group.
    """

    product_id: str
    title: tuple[str, ...] = ()
    sku_options: tuple[dict[str, str], ...] = ()
    attributes: tuple[dict[str, tuple[str, ...]], ...] = ()
    service: tuple[str, ...] = ()
    price: tuple[PriceRange, ...] = ()


class Voucher(Record, frozen=True):
    """A voucher and the budget it must bring the basket under; money in PHP.

    Attributes:
        discount: fraction in (0, 1] for "percentage", None for "fixed".
        face_value: amount for "fixed", None for "percentage".
    """

    voucher_type: Literal["platform", "shop"]
    threshold: float
    discount_type: Literal["fixed", "percentage"]
    budget: float
    face_value: float | None = None
    discount: float | None = None
    cap: float | None = None
    price_after_voucher: float | None = None


class Problem(CanonicalRecord, frozen=True):
    """One problem of a suite.

    Attributes:
        problem_id: unique in its suite.
        catalogue: id of the catalogue it must be solved in, e.g. "compact-7".
        families: title family of each target; decoys of a target share its family. Empty when the
            source has no families (imported suites).
        bank: paraphrase bank of the query's wording, for splits by phrasing.
        reachable: whether some query that the request supports finds every target; None = unknown.
        knowledge: web intent only, the fact to be found.
        source: where the problem came from, e.g. "generated" or a file name.
    """

    problem_id: str
    kind: Kind
    query: str
    rewards: tuple[Reward, ...]
    voucher: Voucher | None = None
    knowledge: str | None = None
    difficulty: str = ""
    reachable: bool | None = None
    families: tuple[str, ...] = ()
    bank: str = ""
    catalogue: str = ""
    title: str = ""
    source: str = "generated"

    def public(self) -> dict[str, str]:
        """The only fields an agent may see: query, category, problem_id."""
        return {
            "query": self.query,
            "category": self.kind.capitalize(),
            "problem_id": self.problem_id,
        }


class Suite(Record, frozen=True):
    """A versioned set of problems over one or more catalogues."""

    suite_id: str
    version: str
    problems: tuple[Problem, ...]
    schema_version: str = msgspec.field(default_factory=current_schema)

    def content_digest(self) -> str:
        """Digest over the problems in order; equal suites have equal digests."""
        return digest(self.problems)
