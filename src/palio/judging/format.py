"""Format, length and step rewards of ShoppingBench as pure functions over text and calls."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from palio.records.base import Record
from palio.records.faults import InputError

TAGS = ("think", "tool_call", "response")
MISSING_TIMESTAMP = 0.5
BEST, WORST = 3.0, -3.0


class Step(Record, frozen=True):
    """One step of a dialogue in the upstream text format.

    Attributes:
        text: what the model wrote, with <think>, <tool_call> and <response> tags.
        timestamp: positive milliseconds, None when the step carries none.
    """

    text: str
    timestamp: float | None = None


def format_score(steps: Sequence[Step], missing_timestamp: float = MISSING_TIMESTAMP) -> float:
    """Mean over steps of `step_format`, times `missing_timestamp` where none stands; in [0, 1].

    The timestamp factor is ORO's; give 1.0 for the score of the original benchmark.
    """
    if not steps:
        return 0.0
    scores = [
        step_format(step.text) * (1.0 if (step.timestamp or 0) > 0 else missing_timestamp)
        for step in steps
    ]
    return sum(scores) / len(steps)


def step_format(text: str, tags: Sequence[str] = TAGS) -> int:
    """1 for a well-formed step, else 0.

    Well-formed: think is there (when it is among `tags`), a tool call or a response is there, each
    tag stands once with its opening before its closing, no tag inside another, in any order, and
    the tool call is a JSON list of {name: text, parameters: object}.
    """
    spans: dict[str, tuple[int, int]] = {}
    for tag in tags:
        opened = [match.start() for match in re.finditer(f"<{tag}>", text)]
        closed = [match.start() for match in re.finditer(f"</{tag}>", text)]
        if not opened and not closed:
            continue
        if len(opened) != 1 or len(closed) != 1 or opened[0] >= closed[0]:
            return 0
        spans[tag] = (opened[0], closed[0])
    if "think" in tags and "think" not in spans:
        return 0
    if "tool_call" not in spans and "response" not in spans:
        return 0
    if "tool_call" in spans and not _is_call_list(text, *spans["tool_call"]):
        return 0
    ordered = sorted(spans.values())
    return int(all(a[1] < b[0] for a, b in pairwise(ordered)))


def _is_call_list(text: str, opened: int, closed: int) -> bool:
    try:
        calls = json.loads(text[opened + len("<tool_call>") : closed])
    except (ValueError, RecursionError):
        return False
    return isinstance(calls, list) and all(
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("parameters"), dict)
        for call in calls
    )


def length_score(steps: int, *, terminated: bool) -> float:
    """1 / steps when the last step called terminate, else 0."""
    return 1.0 / steps if terminated and steps else 0.0


def step_reward(written: str, teacher: str) -> tuple[float, float]:
    """(format, correctness) of a written step against the teacher's, the upstream GRPO reward.

    Format is 0 or 1; a teacher step of a bare tool call asks for no thinking. Correctness is 0
    when the teacher makes no call, else in [-3, 3]; anything unreadable scores -3.

    Raises:
        InputError: the teacher's own call cannot be read.
    """
    bare = (
        _has("tool_call", teacher) and not _has("think", teacher) and not _has("response", teacher)
    )
    form = float(step_format(written, ("tool_call",) if bare else TAGS))
    if not _has("tool_call", teacher):
        return form, 0.0
    try:
        wanted = _calls(teacher)
    except (ValueError, IndexError, RecursionError) as error:
        raise InputError(f"the teacher's tool call cannot be read: {error}") from error
    try:
        return form, call_reward(_calls(written), wanted)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
        return form, WORST


def call_reward(written: Any, teacher: list[dict[str, Any]]) -> float:
    """6 s / L - 3 for tool calls {name, parameters} against the teacher's, 3 when equal.

    s = multiset Jaccard of the names + for each teacher call the best unused call of that name:
    Jaccard of the parameter names + a value score for each shared one. L = 1 + sum(1 + number of
    parameters) over the teacher's calls. Raises what a malformed `written` raises.
    """
    if written == teacher:
        return BEST
    score = jaccard([call["name"] for call in teacher], [call["name"] for call in written])
    limit = 1.0
    unused = dict(enumerate(written))
    for call in teacher:
        limit += 1.0 + len(call["parameters"])
        best, best_index = 0.0, None
        for index, candidate in unused.items():
            if candidate["name"] != call["name"]:
                continue
            alike = _parameters(call["parameters"], candidate["parameters"])
            if alike > best:
                best, best_index = alike, index
        if best_index is not None:
            del unused[best_index]
            score += best
    return (BEST - WORST) * score / limit + WORST


def _parameters(wanted: Mapping[str, Any], written: Mapping[str, Any]) -> float:
    score = jaccard(list(wanted.keys()), list(written.keys()))
    for name, value in wanted.items():
        if name not in written:
            continue
        other = written[name]
        if type(value) is str and type(other) is str:
            score += jaccard(_tokens(value), _tokens(other))
        elif type(value) is int and type(other) is int:
            score += float(value == other)
    return score


def jaccard(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Multiset Jaccard of two lists: 1 when equal, 0 when one is empty."""
    if a == b:
        return 1.0
    if not a or not b:
        return 0.0
    shared = (Counter(a) & Counter(b)).total()
    return shared / (len(a) + len(b) - shared)


def _tokens(text: str) -> list[str]:
    return text.replace(",", " ").split(" ")


def _has(tag: str, text: str) -> bool:
    return f"<{tag}>" in text and f"</{tag}>" in text


def _calls(text: str) -> Any:
    return json.loads(text.split("<tool_call>")[1].split("</tool_call>")[0].strip())
