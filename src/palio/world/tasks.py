"""One row of a task file becomes a trusted Problem, or a reason why not."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from palio.records import (
    KINDS,
    SERVICES,
    Kind,
    PriceMode,
    PriceRange,
    Problem,
    Reward,
    Voucher,
    to_json,
)
from palio.world.rows import BadRowError, explain_bad_json, validation_reason, value_text

_SCALAR = str | int | float


class _Item(msgspec.Struct):
    """One wanted item as task files write it; web rows hold a whole product here."""

    product_id: str | int
    title: list[str] | str = []
    sku_options: list[dict[str, _SCALAR]] | dict[str, Any] = []
    attributes: list[dict[str, list[_SCALAR] | _SCALAR]] | dict[str, Any] = []
    service: list[str] = []
    price: list[dict[str, list[float | None]]] | float = []


class _Voucher(msgspec.Struct):
    voucher_type: Literal["platform", "shop"]
    threshold: float
    discount_type: Literal["fixed", "percentage"]
    budget: float
    face_value: float | None = None
    discount: float | None = None
    cap: float | None = None
    price_after_voucher: float | None = None


class _Row(msgspec.Struct):
    query: str
    reward: _Item | list[_Item]
    voucher: _Voucher | None = None
    knowledge: str | int | float | None = msgspec.field(default=None, name="Knowledge_Attribute")
    category: str | None = None
    difficulty: str = ""
    title: str = ""
    problem_id: str | int | None = None


_row = msgspec.json.Decoder(_Row)


def problem_of_row(data: bytes, place: int, source: str) -> Problem:
    """The problem that a row holds.

    Args:
        data: one JSON object.
        place: row number from 0; part of the id unless the row brings its own.
        source: file name, kept in the problem.

    Raises:
        BadRowError: with the reason codes of `importing.import_suite`.
    """
    try:
        row = _row.decode(data)
    except msgspec.ValidationError as error:
        raise BadRowError(validation_reason(str(error)), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRowError(*explain_bad_json(data, error)) from error
    kind = _kind(row)
    if not row.query.strip():
        raise BadRowError("query", "the query is empty")
    items = row.reward if isinstance(row.reward, list) else [row.reward]
    if not items:
        raise BadRowError("type", "the list of rewards is empty")
    problem = Problem(
        problem_id=str(row.problem_id) if row.problem_id is not None else f"{kind}-{place}",
        kind=kind,
        query=row.query,
        rewards=tuple(_web_reward(item) if kind == "web" else _reward(item) for item in items),
        voucher=_voucher(row.voucher) if row.voucher else None,
        knowledge=None if row.knowledge is None else value_text(row.knowledge),
        difficulty=row.difficulty,
        title=row.title,
        source=source,
    )
    if b"\\u0000" in data and b"\\u0000" in to_json(problem):
        raise BadRowError("text", "a text holds a NUL character")
    return problem


def _kind(row: _Row) -> Kind:
    """The kind that a row names, checked against its shape, or that its shape implies."""
    several = isinstance(row.reward, list)
    if row.knowledge is not None:
        implied = "web"
    elif row.voucher is not None:
        implied = "voucher"
    else:
        implied = "shop" if several else "product"
    named = implied if row.category is None else row.category.strip().lower()
    if named not in KINDS:
        raise BadRowError("kind", f"category {row.category!r} is none of {', '.join(KINDS)}")
    if named != implied:
        raise BadRowError(
            "kind", f"category is {row.category!r}, the row has the shape of {implied}"
        )
    if several != (named in ("shop", "voucher")):
        shape = "a list" if several else "one object"
        raise BadRowError("type", f"the reward of a {named} problem is {shape}")
    return named


def _reward(item: _Item) -> Reward:
    titles = [item.title] if isinstance(item.title, str) else item.title
    if isinstance(item.sku_options, dict) or isinstance(item.attributes, dict):
        raise BadRowError("type", "sku_options or attributes of a reward is not a list")
    if not isinstance(item.price, list):
        raise BadRowError("type", "price of a reward is not a list of ranges")
    unknown = [tag for tag in item.service if tag not in SERVICES]
    if unknown:
        raise BadRowError("service", f"{unknown[0]!r} is none of {', '.join(SERVICES)}")
    return Reward(
        product_id=str(item.product_id),
        title=tuple(titles),
        sku_options=tuple(
            {name: value_text(value) for name, value in pairs.items()} for pairs in item.sku_options
        ),
        attributes=tuple(
            {name: _values(values) for name, values in pairs.items()} for pairs in item.attributes
        ),
        service=tuple(item.service),
        price=tuple(
            _range(mode, bounds) for ranges in item.price for mode, bounds in ranges.items()
        ),
    )


def _web_reward(item: _Item) -> Reward:
    """Of the whole product only id and title: nothing else of it is asked for."""
    titles = [item.title] if isinstance(item.title, str) else item.title
    return Reward(product_id=str(item.product_id), title=tuple(titles))


def _range(mode: str, bounds: list[float | None]) -> PriceRange:
    if mode not in ("less than", "greater than", "between") or len(bounds) != 2:
        raise BadRowError("price", f"{mode!r} with {len(bounds)} bounds is no price range")
    low, high = bounds
    needed = {"less than": (high,), "greater than": (low,), "between": (low, high)}[mode]
    if any(bound is None for bound in needed):
        raise BadRowError("price", f"{mode!r} lacks a bound")
    if low is not None and high is not None and low > high:
        raise BadRowError("price", f"the low bound {low:g} is above the high bound {high:g}")
    return PriceRange(mode=cast("PriceMode", mode), low=low, high=high)


def _voucher(given: _Voucher) -> Voucher:
    if given.threshold < 0 or given.budget < 0:
        raise BadRowError("voucher", "threshold or budget is negative")
    if given.discount_type == "fixed" and given.face_value is None:
        raise BadRowError("voucher", "a fixed voucher without face_value")
    if given.discount_type == "percentage" and not 0 < (given.discount or 0) <= 1:
        raise BadRowError("voucher", f"discount {given.discount!r} is not a fraction in (0, 1]")
    return Voucher(**msgspec.structs.asdict(given))


def _values(values: list[Any] | Any) -> tuple[str, ...]:
    many = values if isinstance(values, list) else [values]
    return tuple(value_text(value) for value in many)
