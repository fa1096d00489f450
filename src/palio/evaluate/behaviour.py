"""How a policy behaved, read from the host's record alone: turns, valid calls, invented ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from palio.records import DispatchEvent, Ending, InferenceEvent, Message, Record, Trajectory
from palio.world.tools import canonical_arguments

ID_KEYS = ("product_ids", "product_id")
"""Names that carry product ids, in canonical arguments and in results."""


class Behaviour(Record, frozen=True, omit_defaults=False):
    """Counts of one rollout.

    Attributes:
        turns: completions that the model gave.
        valid_turns: of these, turns that made at least one call and whose calls all name an offered
            tool with arguments that are a JSON object.
        calls: tool calls that the broker executed.
        refused_calls: of these, calls that a tool answered with an error.
        named_ids: distinct product ids that calls named.
        invented_ids: of these, ids that neither the request nor an earlier result holds.
        completion_tokens: as the server reported them; None when it did not for every turn.
        terminated: the agent ended the run itself.
        timed_out: the wall clock stopped it; with a trusted harness that is the model server's
            time, so a slower one, or more rollouts in flight, make more of these failures.
    """

    turns: int
    valid_turns: int
    calls: int
    refused_calls: int
    named_ids: int
    invented_ids: int
    completion_tokens: int | None
    terminated: bool
    timed_out: bool = False


def behaviour_of(trajectory: Trajectory) -> Behaviour:
    """Count what the record shows."""
    offered = {str(tool.get("function", {}).get("name")) for tool in trajectory.tools}
    completions = [event for event in trajectory.inferences if event.completion is not None]
    named, invented = _named_ids(trajectory)
    dispatches = trajectory.dispatches
    return Behaviour(
        turns=len(completions),
        valid_turns=sum(is_valid_turn(event.completion, offered) for event in completions),
        calls=len(dispatches),
        refused_calls=sum(bool(event.error) for event in dispatches),
        named_ids=len(named),
        invented_ids=len(invented),
        completion_tokens=_tokens(completions),
        terminated=trajectory.ending == Ending.terminated,
        timed_out=trajectory.ending == Ending.timed_out,
    )


def is_valid_turn(completion: Message | None, offered: set[str]) -> bool:
    """Whether an assistant turn makes calls, all of offered tools, all with JSON objects."""
    if completion is None or not completion.tool_calls:
        return False
    return all(
        (not offered or call.function.name in offered)
        and isinstance(_parsed(call.function.arguments), dict)
        for call in completion.tool_calls
    )


def product_ids_in(value: Any) -> Iterator[str]:
    """Every product id in a tool result, at any depth."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in ID_KEYS:
                yield from named_ids(part)
            else:
                yield from product_ids_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from product_ids_in(part)


def named_ids(value: Any) -> list[str]:
    """The ids of a comma text, a list or one whole number; order kept."""
    parts = value if isinstance(value, list) else str(value or "").split(",")
    return [text for part in parts if (text := str(part).strip())]


def _named_ids(trajectory: Trajectory) -> tuple[set[str], set[str]]:
    """(ids that calls named, ids among them that nothing before had shown)."""
    shown: set[str] = set()
    named: set[str] = set()
    invented: set[str] = set()
    for event in trajectory.dispatches:
        for name in _ids_of_call(event):
            named.add(name)
            if name not in shown and name not in trajectory.query:
                invented.add(name)
        if event.tool not in ("recommend_product", "terminate"):
            shown.update(product_ids_in(_parsed(event.result)))
    return named, invented


def _ids_of_call(event: DispatchEvent) -> list[str]:
    arguments = canonical_arguments(event.tool, event.arguments)
    return [name for key in ID_KEYS for name in named_ids(arguments.get(key))]


def _tokens(completions: list[InferenceEvent]) -> int | None:
    counts = [event.usage.completion_tokens for event in completions]
    return sum(count for count in counts if count is not None) if None not in counts else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
