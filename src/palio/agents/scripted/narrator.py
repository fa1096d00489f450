"""Models of sub-task agents: they are shown finished search results and talk about them.

The prompt's form is the bundled sub-task agents' own: a line ``Request: ...``, then one line of
JSON after ``Results:`` (search rows), ``Chosen:`` (ids) or ``Candidate:`` (one row).
"""

from __future__ import annotations

import json
import re
from typing import Any

from palio.agents.scripted.conversation import read_rows
from palio.agents.scripted.verdicts import WORD, stems

_STOP = stems("a an and are for from i in is it me my of on or show some that the to with")
ENOUGH = 0.5
"""Share of the request's words that a title must hold for a yes."""


def narrate(prompt: str) -> tuple[str, str]:
    """Thinking and content about results that the harness fetched and a choice that it made."""
    rows = read_rows(section(prompt, "Results"))
    chosen = re.findall(r"[^\s,]+", section(prompt, "Chosen"))
    if not rows:
        return "The search gave no results, so there is nothing to choose from.", "Nothing found."
    request = section(prompt, "Request")
    by_id = {str(row.get("product_id")): row for row in rows}
    picked = [by_id[product_id] for product_id in chosen if product_id in by_id] or rows[:1]
    others = [row for row in rows if row not in picked]
    lines = [f"The customer asks: {request[:200]}"]
    lines.append(f"The search returned {len(rows)} results, so I go through them one by one.")
    lines.extend(_remark(row, request) for row in picked)
    if others:
        lines.append(
            f"I prefer {_name(picked[0])} over {_name(others[0])} because more of the request "
            f"stands in its title, at a price of {picked[0].get('price')}."
        )
    names = ", ".join(_name(row) for row in picked)
    return " ".join(lines), f"I recommend {names}."


def classify(prompt: str) -> tuple[str, str]:
    """Thinking and a bare "yes" or "no": does the candidate fit the request?"""
    request = section(prompt, "Request")
    rows = read_rows(section(prompt, "Candidate"))
    if not rows:
        return "There is no candidate to look at.", "no"
    wanted = {stem for stem in stems(request) if stem not in _STOP}
    held = stems(" ".join(WORD.findall(json.dumps(rows[0], ensure_ascii=False))))
    title = stems(str(rows[0].get("title", ""))) - _STOP
    share = len(wanted & title) / max(1, len(title))
    missing = sorted(wanted - held)[:3]
    answer = "yes" if share >= ENOUGH else "no"
    thinking = f"{_name(rows[0])} holds {len(wanted & held)} of {len(wanted)} words of the request"
    return thinking + (f", not {' '.join(missing)}." if missing else "."), answer


def section(prompt: str, name: str) -> str:
    """The rest of the line that starts with ``name:``; "" when there is none."""
    match = re.search(rf"^{name}: ?(.*)$", prompt, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _remark(row: dict[str, Any], request: str) -> str:
    shared = sorted(stems(str(row.get("title", ""))) & stems(request) - _STOP)[:4]
    said = f"it mentions {' '.join(shared)}" if shared else "it is the closest there is"
    return f"Product {row.get('product_id')} is {str(row.get('title', ''))[:80]}: {said}."


def _name(row: dict[str, Any]) -> str:
    return str(row.get("product_id"))
