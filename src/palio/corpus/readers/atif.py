"""ATIF documents 1.0 to 1.8 (format 7) become trajectories, one for each embedded subagent too.

`llm_call_count` 0 means that the harness dispatched the step's calls; `is_copied_context` marks
steps that must not be trained on: copied agent steps are dropped and listed, what system and user
said stays. References to other trajectories are listed and never followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.links import has_cycle, is_cyclic
from palio.corpus.readers.losses import Imported, LossList, UnreadableError
from palio.corpus.readers.record import Note
from palio.corpus.readers.shapes import listed, mapping, texted
from palio.records import AgentRef, Trajectory, Usage

OWN = "palio"
"""Key in `extra` under which palio's writer keeps what ATIF has no field for."""

_ROLE = {"system": "system", "user": "user", "agent": "assistant"}
_KEYS = frozenset(
    (
        *("schema_version", "session_id", "trajectory_id", "agent", "steps", "extra", "notes"),
        *("final_metrics", "continued_trajectory_ref", "subagent_trajectories"),
    )
)
_STEP_KEYS = frozenset(
    (
        *("step_id", "timestamp", "source", "model_name", "reasoning_effort", "message"),
        *("reasoning_content", "tool_calls", "observation", "metrics", "extra"),
        *("llm_call_count", "is_copied_context"),
    )
)
_OWN_TYPES = {
    field.name: field.type
    for field in msgspec.structs.fields(Trajectory)
    if field.name
    not in {
        *("trajectory_id", "agent", "events", "messages", "tools"),
        *("source", "isolation", "eligible", "schema_version"),
    }
}
_METRICS = ("cached_tokens", "cost_usd", "prompt_token_ids", "completion_token_ids", "logprobs")


def is_atif(row: Any) -> bool:
    """Whether a document says that it is ATIF, or has steps of ATIF's sources."""
    if not isinstance(row, dict) or not isinstance(row.get("steps"), list):
        return False
    if str(row.get("schema_version")).upper().startswith("ATIF"):
        return True
    return any(texted(mapping(step).get("source")) in _ROLE for step in row["steps"])


def read_atif(row: Mapping[str, Any], source: str) -> list[Imported]:
    """The document's trajectory, then those of its embedded subagents, depth first.

    Raises:
        UnreadableError: a step of the document itself is none; an unreadable subagent is a loss.
    """
    losses = LossList()
    if _refers_in_circles(row):
        losses.add("cyclic_reference", "subagent_trajectory_ref")
    found = [_one(row, source, losses)]
    waiting = list(reversed(_subagents(row)))
    while waiting:
        document = waiting.pop()
        waiting += reversed(_subagents(document))
        try:
            found.append(_one(document, source, LossList()))
        except UnreadableError as error:
            losses.add("subagent", str(document.get("trajectory_id") or error.what))
    return [Imported(found[0].trajectory, tuple(losses.all)), *found[1:]]


def _one(row: Mapping[str, Any], source: str, losses: LossList) -> Imported:
    conversation = Conversation(losses)
    if is_cyclic(row["steps"]):
        losses.add("cyclic_reference", "steps")
    notes: dict[int, Note] = {}
    origin = _origin(row["steps"])
    for index, step in enumerate(row["steps"]):
        _read_step(conversation, step, f"steps[{index}]", notes, origin)
    if not conversation.messages:
        raise UnreadableError("empty", "the document has no step to keep")
    agent = mapping(row.get("agent"))
    losses.unknown(row, _KEYS)
    losses.unknown(agent, ("name", "version", "model_name", "tool_definitions", "extra"), "agent")
    losses.dropped(agent, ("extra",), "agent")
    losses.dropped(row, ("notes", "final_metrics", "continued_trajectory_ref"))
    for index, sub in enumerate(listed(row.get("subagent_trajectories"))):
        if not is_atif(sub):
            losses.add("subagent", f"subagent_trajectories[{index}]")
    own = _own_fields(row, losses)
    named = external_agent(agent.get("name"), agent.get("model_name"), agent.get("version"))
    return imported(
        conversation,
        source,
        fallback=row,
        notes=notes,
        tools=read_tools(agent.get("tool_definitions"), losses, "agent.tool_definitions"),
        **{
            "trajectory_id": str(row.get("trajectory_id") or row.get("session_id") or ""),
            **own,
            "agent": _with_own(named, own.get("agent")),
        },
    )


def _with_own(agent: AgentRef, own: Mapping[str, Any] | None) -> AgentRef:
    """The agent with the kind and digest that palio's writer kept."""
    kept = {key: own[key] for key in ("kind", "digest") if key in own} if own else {}
    try:
        return msgspec.convert({**msgspec.to_builtins(agent), **kept}, AgentRef)
    except msgspec.ValidationError:
        return agent


def _own_fields(row: Mapping[str, Any], losses: LossList) -> dict[str, Any]:
    """Fields of the trajectory that palio's writer kept."""
    own = _own(row, "", losses)
    fields: dict[str, Any] = {}
    for name, value in own.items():
        if name == "agent" and isinstance(value, dict):
            fields["agent"] = value
        elif name not in _OWN_TYPES:
            losses.add("unknown_key", f"extra.{OWN}.{name}")
        else:
            try:
                fields[name] = msgspec.convert(value, _OWN_TYPES[name])
            except msgspec.ValidationError:
                losses.add("own_field", f"extra.{OWN}.{name}")
    return fields


def _read_step(
    conversation: Conversation, step: Any, where: str, notes: dict[int, Note], origin: float | None
) -> None:
    losses = conversation.losses
    if texted(mapping(step).get("source")) not in _ROLE:
        raise UnreadableError("step", f"{where} is no step")
    losses.unknown(step, _STEP_KEYS, where)
    agent = step["source"] == "agent"
    if step.get("is_copied_context") is True and agent:
        losses.add("copied_context", where)
        return
    kept = _own(step, where, losses)
    own = {key: kept[key] for key in ("content", "name", "rationalised") if key in kept}
    raw: dict[str, Any] = {"role": _ROLE[step["source"]], "content": step.get("message"), **own}
    if agent:
        raw["reasoning_content"] = step.get("reasoning_content")
        raw["tool_calls"] = [_call(call) for call in listed(step.get("tool_calls"))]
        if raw["tool_calls"] and raw["content"] == "" and "content" not in own:
            raw["content"] = None  # ATIF requires a text where OpenAI has null
    else:
        losses.dropped(step, ("reasoning_content", "tool_calls", "model_name"), where)
    harness = agent and step.get("llm_call_count") == 0
    results = _results(step, where, losses)
    if not agent and results and step.get("message") in (None, "", []):
        _add_results(conversation, results, where, _ROLE[step["source"]])
        return
    position = len(conversation.messages)
    conversation.add(raw, where, harness=harness)
    if agent:
        notes[position] = _note(step, where, losses, origin, inferred=not harness)
    _add_results(conversation, results, where, "" if raw.get("tool_calls") else raw["role"])


def _own(holder: Mapping[str, Any], where: str, losses: LossList) -> Mapping[str, Any]:
    """What palio's writer kept in an `extra`; anybody else's extra is listed."""
    extra = holder.get("extra")
    if not isinstance(extra, dict):
        losses.dropped(holder, ("extra",), where)
        return {}
    for key in extra:
        if key != OWN:
            losses.add("not_carried", f"{where}.extra.{key}" if where else f"extra.{key}")
    return mapping(extra.get(OWN))


def _call(call: Any) -> Any:
    """A call of ATIF as one of OpenAI; the text that palio's writer kept wins."""
    if not isinstance(call, dict):
        return call
    extra = mapping(call.get("extra"))
    own = mapping(extra.get(OWN))
    arguments = {key: call[key] for key in ("arguments",) if key in call}
    if isinstance(own.get("arguments"), str):
        arguments = {"arguments": own["arguments"]}
    rest = {key: extra[key] for key in extra if key != OWN}
    function = {"name": call.get("function_name"), **arguments}
    return {
        "id": call.get("tool_call_id"),
        "function": function,
        **({"extra": rest} if rest else {}),
    }


def _results(step: Mapping[str, Any], where: str, losses: LossList) -> list[Mapping[str, Any]]:
    observation = step.get("observation")
    given = observation.get("results") if isinstance(observation, dict) else observation
    if isinstance(given, str):
        given = [{"content": given}]
    found: list[Mapping[str, Any]] = []
    for index, result in enumerate(listed(given)):
        place = f"{where}.observation.results[{index}]"
        if not isinstance(result, dict):
            losses.add("result_shape", place)
            continue
        losses.unknown(
            result, ("source_call_id", "content", "subagent_trajectory_ref", "extra"), place
        )
        losses.dropped(result, ("subagent_trajectory_ref",), place)
        own = _own(result, place, losses)
        kept = {"source_call_id": own["tool_call_id"]} if "tool_call_id" in own else {}
        found.append({**result, **kept, "name": own.get("name")})
    return found


def _add_results(
    conversation: Conversation, results: list[Mapping[str, Any]], where: str, speaker: str
) -> None:
    """Add the observations of a step: answers to its calls, or what the environment said."""
    for index, result in enumerate(results):
        place = f"{where}.observation.results[{index}]"
        said = {"content": result["content"]} if "content" in result else {}
        call_id = result.get("source_call_id")
        if call_id or not speaker:
            named = {"name": result["name"]} if result.get("name") else {}
            conversation.add({"role": "tool", "tool_call_id": call_id, **named, **said}, place)
        else:
            conversation.losses.add("observation_as_message", place)
            role = "system" if speaker == "system" else "user"
            conversation.add({"role": role, **said}, place)


def _note(
    step: Mapping[str, Any],
    where: str,
    losses: LossList,
    origin: float | None,
    *,
    inferred: bool,
) -> Note:
    metrics = mapping(step.get("metrics"))
    losses.unknown(
        metrics, (*_METRICS, "prompt_tokens", "completion_tokens", "extra"), f"{where}.metrics"
    )
    losses.dropped(metrics, (*_METRICS, "extra"), f"{where}.metrics")
    at = _milliseconds(step.get("timestamp"))
    if at is None and step.get("timestamp") is not None:
        losses.add("timestamp", where)
    params = {
        name: step[key]
        for key, name in (("model_name", "model"), ("reasoning_effort", "reasoning_effort"))
        if step.get(key) is not None
    }
    return Note(
        at_ms=at - origin if at is not None and origin is not None else 0.0,
        usage=Usage(
            prompt_tokens=_count(metrics.get("prompt_tokens")),
            completion_tokens=_count(metrics.get("completion_tokens")),
        ),
        params=params,
        inferred=inferred,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _origin(steps: list[Any]) -> float | None:
    times = (_milliseconds(step.get("timestamp")) for step in steps if isinstance(step, dict))
    return min((time for time in times if time is not None), default=None)


def _milliseconds(value: Any) -> float | None:
    """Milliseconds since 1970 of an ISO 8601 time, UTC where it names no zone."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if time is None:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000


def _refers_in_circles(row: Mapping[str, Any]) -> bool:
    """Whether references between the document and its embedded subagents form a circle."""
    links: dict[str, list[str]] = {}
    waiting: list[Mapping[str, Any]] = [row]
    while waiting:
        document = waiting.pop()
        own = str(document.get("trajectory_id") or document.get("session_id") or "")
        named = links.setdefault(own, [])
        if isinstance(document.get("continued_trajectory_ref"), str):
            named.append(document["continued_trajectory_ref"])
        for step in listed(document.get("steps")):
            for result in listed(mapping(mapping(step).get("observation")).get("results")):
                refs = mapping(result).get("subagent_trajectory_ref")
                for ref in refs if isinstance(refs, list) else [refs]:
                    if target := mapping(ref).get("trajectory_id"):
                        named.append(str(target))
        waiting += _subagents(document)
    return has_cycle(links)


def _subagents(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [sub for sub in listed(document.get("subagent_trajectories")) if is_atif(sub)]
