"""The `obs` of an upstream step find their calls: its own, or those of the step before."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from palio.corpus.readers.losses import LossList


class Observed(NamedTuple):
    """One result of a step's `obs`; `call_id` is "" where only its place can pair it."""

    result: Any
    call_id: str
    where: str


def derived_id(name: Any, parameters: Any) -> str:
    """The id that the arena's tools give a call: 8 characters of md5(name, line feed, repr)."""
    text = f"{name}\n{parameters!r}".encode("utf-8", "replace")
    md5 = hashlib.md5(text, usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(md5).decode("ascii")[:8]


def observed(
    given: Any, calls: Sequence[Any], where: str, losses: LossList
) -> tuple[list[Observed], list[Observed]]:
    """(results of an earlier step's calls, results of this step's calls).

    Args:
        given: the `obs` of a step: a list of {tool_call_id, results}, or one of them.
        calls: the step's calls; those without an id get the arena's.
        where: the step's place.
        losses: takes what was changed.
    """
    named = [str(call.get("tool_call_id") or call.get("id") or "") for call in calls]
    without = bool(calls) and not any(named)
    earlier: list[Observed] = []
    own: list[Observed] = []
    for index, obs in enumerate(given if isinstance(given, list) else [given] if given else []):
        place = f"{where}.obs[{index}]"
        if not isinstance(obs, dict) or not ({"results", "result"} & set(obs)):
            own.append(Observed(obs, "", place))
            continue
        losses.unknown(obs, ("tool_call_id", "results", "result", "name"), place)
        call_id = str(obs.get("tool_call_id") or "")
        result = obs.get("results", obs.get("result"))
        if without:
            ids = [derived_id(call.get("name"), _parameters(call)) for call in calls]
            own.append(Observed(result, call_id if call_id in ids else "", place))
        elif call_id and call_id not in named:
            earlier.append(Observed(result, call_id, place))
        else:
            own.append(Observed(result, call_id, place))
    return earlier, own


def with_derived_id(call: dict[str, Any]) -> dict[str, Any]:
    """A call of an upstream step with the id that its results name."""
    if call.get("tool_call_id") or call.get("id"):
        return call
    return {**call, "tool_call_id": derived_id(call.get("name"), _parameters(call))}


def _parameters(call: dict[str, Any]) -> Any:
    return call.get("parameters", call.get("arguments"))
