"""Evaluation rows (format 8) become trajectories: the calls and the final text, no observations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Imported
from palio.judging.answers import product_ids
from palio.records import Ending

_RUN = re.compile(r"(?P<problem>.+?)-rollout-(?P<attempt>\d{1,6})")
_KEYS = frozenset(
    ("name", "query", "sample", "grade", "usage", "latency_seconds", "model", "tools", "id")
)
_SAMPLE_KEYS = frozenset(
    ("task", "recommended_product_ids", "terminated", "output_tools", "assistant_text", "tools")
)
_RESULTS = ("result", "results", "output", "content", "response")


def is_evaluation(row: Any) -> bool:
    """Whether a row is a graded sample with the calls that a model put out."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("sample"), dict)
        and "output_tools" in row["sample"]
        and isinstance(row["sample"]["output_tools"], list | None)
    )


def read_evaluation(row: Mapping[str, Any], source: str) -> Imported:
    """Read one row.

    Which calls shared a turn is not in the row, so each call is a turn of its own, listed once as
    `turns_unknown`; results are read where an item has one and listed as `absent_results` where
    none does. The name ``PROBLEM-rollout-N`` gives problem and attempt.
    """
    conversation = Conversation()
    losses = conversation.losses
    sample = row["sample"]
    query = row.get("query") if isinstance(row.get("query"), str) else ""
    conversation.add({"role": "user", "content": query}, "query")
    made = sample["output_tools"] or []
    seen = [_turn(conversation, item, index) for index, item in enumerate(made)]
    if len(seen) > 1:
        losses.add("turns_unknown", "sample.output_tools")
    if seen and not any(seen):
        losses.add("absent_results", "sample.output_tools")
    text = sample.get("assistant_text")
    if isinstance(text, str) and text:
        conversation.add({"role": "assistant", "content": text}, "sample.assistant_text")
    losses.unknown(row, _KEYS)
    losses.unknown(sample, _SAMPLE_KEYS, "sample")
    losses.dropped(row, ("grade", "usage"))
    name = row.get("name") if isinstance(row.get("name"), str) else ""
    parts = _RUN.fullmatch(name or "")
    seconds = row.get("latency_seconds")
    answer = ",".join(product_ids(sample.get("recommended_product_ids")))
    return imported(
        conversation,
        source,
        fallback=row,
        tools=read_tools(row.get("tools") or sample.get("tools"), losses),
        trajectory_id=str(row.get("id") or name),
        problem_id=parts["problem"] if parts else name,
        attempt=int(parts["attempt"]) if parts else None,
        query=query,
        kind=sample.get("task") if isinstance(sample.get("task"), str) else None,
        agent=external_agent(model=row.get("model")),
        answer=answer or None,
        ending=Ending.terminated if sample.get("terminated") is True else Ending.returned,
        duration_s=float(seconds) if isinstance(seconds, int | float) else None,
    )


def _turn(conversation: Conversation, item: Any, index: int) -> bool:
    """Add one call, and its result where the item has one; gives whether it had."""
    where = f"sample.output_tools[{index}]"
    held = item if isinstance(item, dict) else {}
    key = next((name for name in _RESULTS if name in held), None)
    call = {name: value for name, value in held.items() if name != key}
    before = len(conversation.messages)
    conversation.add({"role": "assistant", "content": None, "tool_calls": [call]}, where)
    calls = conversation.messages[before].tool_calls
    if not calls:
        conversation.messages.pop()  # listed as `call_shape`
        return False
    if key is not None:
        text = held[key] if isinstance(held[key], str) else json_text(held[key])
        conversation.add({"role": "tool", "tool_call_id": calls[0].id, "content": text}, where)
    return key is not None
