"""Slips of the pen: what a row's text must or must not hold if its label is meant.

Labels are given by reading; this only finds scripts that say by accident what they should not, a
value of a result in a text "in general terms", for instance. It knows nothing of any judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from episode import completion_bytes

from palio.evaluate.calibration import LabelledRow
from palio.records import Trajectory

SHORT, LONG = 28 * 4, 30 * 4
CALL = 45
"""Bytes that a chat template puts around one call."""


def slips(row: LabelledRow) -> Iterator[str]:
    """One sentence a slip; traces are read by hand and pass."""
    trajectory = row.trajectory
    if trajectory is None or row.population == "trace":
        return
    sizes = [
        (completion_bytes(e.completion), CALL * len(e.completion.tool_calls))
        for e in trajectory.inferences
        if e.completion is not None
    ]
    longest = max((size for size, _ in sizes), default=0)
    framed = max((size + frame for size, frame in sizes), default=0)
    if row.label < 0.2 and framed >= SHORT:
        yield f"a completion has {framed} bytes, calls included"
    if row.label > 0.2 and longest < LONG:
        yield f"the longest completion has {longest} bytes"
    text = " ".join(thinking(trajectory)).replace(trajectory.query, " ")
    said = _words(text) - _words(trajectory.query)
    shown = data(trajectory)
    if 0.2 < row.label < 0.6 and said & shown:
        yield f"names {sorted(said & shown)} of the results"
    if row.label > 0.6 and not _names(text, shown):
        yield "names nothing of the results"


def thinking(trajectory: Trajectory) -> list[str]:
    """The model's words, one text an inference."""
    return [
        f"{e.completion.reasoning_content or ''} {e.completion.content or ''}".strip()
        for e in trajectory.inferences
        if e.completion is not None
    ]


def data(trajectory: Trajectory) -> set[str]:
    """Ids, shops, prices and values of all results as words."""
    found: set[str] = set()
    for event in trajectory.dispatches:
        answer = json.loads(event.result)
        for row in answer if isinstance(answer, list) else [answer]:
            if "recommended" in row or "status" in row or "error" in row:
                continue
            found |= {f"{row[n]:g}" for n in ("price", "total_before", "total_after") if n in row}
            found |= {row[n] for n in ("product_id", "shop_id") if n in row}
            for values in (row.get("attributes") or {}).values():
                found |= set(values)
            for sku in (row.get("sku_options") or {}).values():
                found |= set(sku.values())
    return found


def _words(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?|[a-z]+", text.lower()))


def _names(text: str, shown: set[str]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) for value in shown) or any(
        place in text for place in ("first row", "second row", "third row")
    )
