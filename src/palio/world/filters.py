"""An agent's search arguments become filters, or one sentence for each that cannot be read."""

from __future__ import annotations

import math
from typing import Any, cast

from palio.records import SERVICES, Record
from palio.world.search import SORTS, PriceBounds, SearchSpec, Sort

_NO_SERVICE = frozenset({"", "default", "none", "all"})


class SearchFilters(Record, frozen=True):
    """Readable filters of one search, with a sentence about each argument that was ignored.

    Attributes:
        page: 1 to the spec's last page; 0 when the request names no such page.
    """

    price: PriceBounds | None = None
    services: tuple[str, ...] = ()
    sort: Sort = "default"
    page: int = 1
    ignored: tuple[str, ...] = ()


def read_filters(arguments: dict[str, Any], spec: SearchSpec) -> SearchFilters:
    """Read price, service, sort and page from canonical arguments."""
    ignored: list[str] = []
    price = read_price(arguments.get("price"), ignored)
    services = read_services(arguments.get("service"), ignored)
    sort = arguments.get("sort", "default")
    if not isinstance(sort, str) or sort not in SORTS:
        ignored.append(f"sort {shown(sort)} is unknown and was ignored; use {', '.join(SORTS)}")
        sort = "default"
    page = arguments.get("page", 1)
    if isinstance(page, bool) or not isinstance(page, int) or not 1 <= page <= spec.pages:
        ignored.append(f"page {shown(page)} does not exist; pages are 1 to {spec.pages}")
        page = 0
    return SearchFilters(
        price=price,
        services=services,
        sort=cast("Sort", sort),
        page=page,
        ignored=tuple(ignored),
    )


def read_price(given: Any, ignored: list[str]) -> PriceBounds | None:
    """Inclusive bounds of "low-high" with either side open; None, and a sentence, if unreadable."""
    if given in (None, ""):
        return None
    sides = given.split("-") if isinstance(given, str) else []
    low, high = (_side(side) for side in sides) if len(sides) == 2 else (math.nan, math.nan)
    if math.isnan(low or 0.0) or math.isnan(high or 0.0):
        ignored.append(
            f"price {shown(given)} cannot be read and was ignored; "
            'write "low-high", for example "100-200", "100-" or "-200"'
        )
        return None
    if low is not None and high is not None and low > high:
        ignored.append(f"price {shown(given)} has its low side above its high side: nothing fits")
    return None if low is None and high is None else (low, high)


def read_services(given: Any, ignored: list[str]) -> tuple[str, ...]:
    """Known tags of a comma list; a sentence for each unknown one."""
    if given is None or (isinstance(given, str) and given in _NO_SERVICE):
        return ()
    names = given.split(",") if isinstance(given, str) else [given]
    known = []
    for name in names:
        if isinstance(name, str) and name.strip() in SERVICES:
            known.append(name.strip())
        else:
            ignored.append(
                f"service {shown(name)} is unknown and was ignored; use {', '.join(SERVICES)}"
            )
    return tuple(dict.fromkeys(known))


def shown(value: Any) -> str:
    """A value as an agent may read it back: quoted, printable, at most 60 characters."""
    text = ascii(value) if not isinstance(value, str) else f"'{value}'"
    text = "".join(letter if letter.isprintable() else " " for letter in text[:61])
    return text if len(text) <= 60 else text[:57] + "..."


def _side(text: str) -> float | None:
    """One side of a price: None when open, NaN when it is not a number."""
    text = text.strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan
