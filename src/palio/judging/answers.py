"""What an agent recommended, read as each profile reads it, and whether a tool ever showed it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palio.records.trajectory import DispatchEvent, Trajectory
from palio.records.verdict import Profile

# Tools whose results show products. calculate_voucher repeats the caller's numbers and
# recommend_product the caller's ids, so neither can ground an id.
SHOWING_TOOLS = frozenset(
    {
        "find_product",
        "view_product_information",
        "check_product_match",
        "find_products_in_same_shop",
    }
)


def answer_ids(answer: Any, profile: Profile) -> list[str]:
    """Product ids of an answer, in its order; [] when the profile sees no answer.

    `upstream` splits a string on "," and does nothing else; `oro` also strips, drops empties and
    repeats. For both a list, or anything else that is no string, is no answer. `strict` reads
    lists of strings or whole numbers like the string they stand for.
    """
    if profile == "strict":
        answer = canonical_answer(answer)
    if not isinstance(answer, str):
        return []
    ids = answer.split(",")
    if profile == "upstream":
        return ids
    return list(dict.fromkeys(stripped for one in ids if (stripped := one.strip())))


def canonical_answer(answer: Any) -> str | None:
    """A string, list or whole number as one comma-separated string; None for anything else."""
    if isinstance(answer, bool) or answer is None:
        return None
    if isinstance(answer, int):
        return str(answer)
    if isinstance(answer, list | tuple):
        parts = [canonical_answer(one) for one in answer]
        return None if None in parts else ",".join([part for part in parts if part])
    return answer if isinstance(answer, str) else None


def product_ids(value: Any) -> tuple[str, ...]:
    """Ids out of a comma string, a number or a list of them; stripped, empties and repeats out."""
    if isinstance(value, str):
        parts: Sequence[Any] = value.split(",")
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = () if value is None or isinstance(value, bool | Mapping) else (value,)
    plain = (part for part in parts if isinstance(part, str | int | float))
    names = (str(part).strip() for part in plain)
    return tuple(dict.fromkeys(name for name in names if name))


def recommended(trajectory: Trajectory) -> tuple[str, ...]:
    """The ids of the answer of record."""
    return product_ids(trajectory.answer)


def shown_results(trajectory: Trajectory) -> list[str]:
    """Results that showed products, up to the last recommendation."""
    results: list[str] = []
    before = 0
    for event in trajectory.events:
        if not isinstance(event, DispatchEvent):
            continue
        if event.tool == "recommend_product":
            before = len(results)
        elif event.tool in SHOWING_TOOLS and not event.error and event.fault is None:
            results.append(event.result)
    return results[:before]


def ungrounded(ids: Iterable[str], results: list[str]) -> list[str]:
    """The ids that no result names as a product id."""
    return [one for one in ids if not any(_names(result, one) for result in results)]


def _names(result: str, product_id: str) -> bool:
    """Whether a result holds `product_id` as the value of a "product_id" key.

    Looks at the text around each occurrence instead of parsing: 40 KiB of results cost about
    10 us, a parse 100 us. A quote inside a JSON string is escaped, so a title or description
    cannot forge the key.
    """
    at = result.find(product_id)
    while at >= 0:
        end = at + len(product_id)
        quoted = result[at - 1 : at] == '"' and result[end : end + 1] == '"'
        bare = not result[end : end + 1].isalnum() and result[end : end + 1] not in {".", '"'}
        head = result[max(0, at - 20) : at - quoted].rstrip()
        if (quoted or bare) and head.endswith(":") and head[:-1].rstrip().endswith('"product_id"'):
            return True
        at = result.find(product_id, at + 1)
    return False
