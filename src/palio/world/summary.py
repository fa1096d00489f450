"""What a catalogue holds, in a dozen numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Any

from palio.records import SERVICES, Reject, Suite
from palio.world.catalogue import Catalogue


def summarise(catalogue: Catalogue, rejects: Iterable[Reject] = ()) -> dict[str, Any]:
    """Counts and ranges of a catalogue as plain JSON data; prices in PHP."""
    prices = [product.price for product in catalogue]
    tags = Counter(tag for product in catalogue for tag in product.service)
    return {
        "catalogue_id": catalogue.catalogue_id,
        "digest": catalogue.digest,
        "products": len(catalogue),
        "shops": len(catalogue.by_shop),
        "with_skus": sum(bool(product.sku_options) for product in catalogue),
        "with_attributes": sum(bool(product.attributes) for product in catalogue),
        "price": {"low": min(prices), "median": median(prices), "high": max(prices)}
        if prices
        else {},
        "services": {tag: tags[tag] for tag in SERVICES},
        "rejected": dict(sorted(Counter(reject.reason for reject in rejects).items())),
    }


def summarise_suite(suite: Suite) -> dict[str, Any]:
    """Counts of a suite as plain JSON data."""
    kinds = Counter(problem.kind for problem in suite.problems)
    wanted = Counter(len(problem.rewards) for problem in suite.problems)
    return {
        "suite_id": suite.suite_id,
        "version": suite.version,
        "digest": suite.content_digest(),
        "problems": len(suite.problems),
        "kinds": dict(sorted(kinds.items())),
        "items": {str(count): wanted[count] for count in sorted(wanted)},
        "difficulty": dict(sorted(Counter(p.difficulty or "-" for p in suite.problems).items())),
        "sources": dict(sorted(Counter(problem.source for problem in suite.problems).items())),
        "catalogues": sorted(
            {problem.catalogue for problem in suite.problems if problem.catalogue}
        ),
    }
