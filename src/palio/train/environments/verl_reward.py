"""verl's reward function: the verdict of palio's outcome scorer on the calls of a rollout."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from palio.broker.emission import read_emission
from palio.records import Message, Problem, from_json
from palio.train.environments.shop import Call, Shop

CALLS = "palio_calls"
"""Where the tools leave the calls that they carried out, in the extra fields of a rollout."""
_RESULT = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)


def score(
    shop: Shop,
    solution: str,
    ground_truth: str,
    extra_info: MutableMapping[str, Any] | None = None,
) -> dict[str, float]:
    """What `compute_score` of verl returns: `score` is the reward, the rest is logged.

    Args:
        shop: of the export.
        solution: the decoded response; read only where the tools left no calls.
        ground_truth: the problem as JSON text, as the export wrote it.
        extra_info: of the row, with what the tools left.
    """
    problem = from_json(ground_truth.encode(), Problem, where="ground_truth")
    return shop.marks(problem, calls_of(solution, extra_info))


def calls_of(solution: str, extra_info: MutableMapping[str, Any] | None = None) -> tuple[Call, ...]:
    """The calls of a rollout: those that the tools carried out, else those in the text.

    They are taken out of `extra_info`, which may be the dict of the next rollout of the same row,
    too. A response in which the model writes no call has none, whatever still stands there.
    """
    carried_out = extra_info.pop(CALLS, None) if extra_info else None
    if "<tool_call>" not in solution:
        return ()
    if carried_out is not None:
        return tuple(Call(str(tool), str(arguments)) for tool, arguments in carried_out)
    written = read_emission(Message(role="assistant", content=_RESULT.sub("", solution)))
    return tuple(Call(call.function.name, call.function.arguments) for call in written.calls)


def noted(tool: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """A call as the tools leave it."""
    return tool, json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
