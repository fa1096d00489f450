"""ATIF documents 1.0 to 1.8 (format 7) become trajectories, one for each embedded subagent too.

`llm_call_count` 0 means that the harness dispatched the step's calls; `is_copied_context` marks
steps that must not be trained on: copied agent steps are dropped and listed, what system and user
said stays. References to other trajectories are listed and never followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.links import has_cycle, is_cyclic
from palio.corpus.readers.losses import Imported, LossList, UnreadableError
from palio.corpus.readers.record import Note
from palio.records import Ending, Usage

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
_METRICS = ("cached_tokens", "cost_usd", "prompt_token_ids", "completion_token_ids", "logprobs")


def is_atif(row: Any) -> bool:
    """Whether a document says that it is ATIF, or has steps of ATIF's sources."""
    if not isinstance(row, dict) or not isinstance(row.get("steps"), list):
        return False
    if str(row.get("schema_version")).upper().startswith("ATIF"):
        return True
    return any(isinstance(step, dict) and step.get("source") in _ROLE for step in row["steps"])


def read_atif(row: Mapping[str, Any], source: str) -> Iterator[Imported]:
    """The document's trajectory, then those of its embedded subagents, depth first.

    Raises:
        UnreadableError: a step is none.
    """
    waiting: list[Mapping[str, Any]] = [row]
    losses = LossList()
    if _refers_in_circles(row):
        losses.add("cyclic_reference", "subagent_trajectory_ref")
    while waiting:
        document = waiting.pop()
        yield _one(document, source, losses)
        waiting += reversed(_subagents(document))
        losses = LossList()


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
    agent = row["agent"] if isinstance(row.get("agent"), Mapping) else {}
    losses.unknown(row, _KEYS)
    losses.unknown(agent, ("name", "version", "model_name", "tool_definitions", "extra"), "agent")
    losses.dropped(agent, ("extra",), "agent")
    losses.dropped(row, ("notes", "final_metrics", "continued_trajectory_ref"))
    for index, sub in enumerate(row.get("subagent_trajectories") or []):
        if not is_atif(sub):
            losses.add("subagent", f"subagent_trajectories[{index}]")
    return imported(
        conversation,
        source,
        fallback=row,
        notes=notes,
        tools=read_tools(agent.get("tool_definitions"), losses, "agent.tool_definitions"),
        **{
            "trajectory_id": str(row.get("trajectory_id") or row.get("session_id") or ""),
            "agent": external_agent(
                agent.get("name"), agent.get("model_name"), agent.get("version")
            ),
            **_own_fields(row, losses),
        },
    )


def _own_fields(row: Mapping[str, Any], losses: LossList) -> dict[str, Any]:
    """Fields that palio's writer kept in `extra`; anybody else's extra is listed."""
    extra = row.get("extra")
    if not isinstance(extra, Mapping):
        losses.dropped(row, ("extra",))
        return {}
    for key in extra:
        if key != OWN:
            losses.add("not_carried", f"extra.{key}")
    own = extra.get(OWN)
    if not isinstance(own, Mapping):
        return {}
    texts = ("problem_id", "query", "kind", "suite_id", "catalogue", "catalogue_digest")
    fields: dict[str, Any] = {key: own[key] for key in texts if isinstance(own.get(key), str)}
    fields |= {key: own[key] for key in ("seed", "attempt") if isinstance(own.get(key), int)}
    if "answer" in own:
        fields["answer"] = own["answer"]
    if own.get("ending") in list(Ending):
        fields["ending"] = Ending(own["ending"])
    return fields


def _read_step(
    conversation: Conversation, step: Any, where: str, notes: dict[int, Note], origin: float | None
) -> None:
    losses = conversation.losses
    if not isinstance(step, Mapping) or step.get("source") not in _ROLE:
        raise UnreadableError("step", f"{where} is no step")
    losses.unknown(step, _STEP_KEYS, where)
    agent = step["source"] == "agent"
    if step.get("is_copied_context") is True and agent:
        losses.add("copied_context", where)
        return
    own = _own_step(step, where, losses)
    raw: dict[str, Any] = {"role": _ROLE[step["source"]], "content": step.get("message"), **own}
    if agent:
        raw["reasoning_content"] = step.get("reasoning_content")
        raw["tool_calls"] = [_call(call) for call in step.get("tool_calls") or []]
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


def _own_step(step: Mapping[str, Any], where: str, losses: LossList) -> dict[str, Any]:
    extra = step.get("extra")
    if not isinstance(extra, Mapping):
        losses.dropped(step, ("extra",), where)
        return {}
    for key in extra:
        if key != OWN:
            losses.add("not_carried", f"{where}.extra.{key}")
    own = extra.get(OWN)
    known = ("content", "name", "rationalised")
    return {key: own[key] for key in known if key in own} if isinstance(own, Mapping) else {}


def _call(call: Any) -> Any:
    """A call of ATIF as one of OpenAI; the text that palio's writer kept wins."""
    if not isinstance(call, Mapping):
        return call
    extra = call["extra"] if isinstance(call.get("extra"), Mapping) else {}
    own = extra.get(OWN)
    arguments = {key: call[key] for key in ("arguments",) if key in call}
    if isinstance(own, Mapping) and isinstance(own.get("arguments"), str):
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
    given = observation.get("results") if isinstance(observation, Mapping) else observation
    if isinstance(given, str):
        given = [{"content": given}]
    found = []
    for index, result in enumerate(given if isinstance(given, list) else []):
        place = f"{where}.observation.results[{index}]"
        if not isinstance(result, Mapping):
            losses.add("result_shape", place)
            continue
        losses.unknown(
            result, ("source_call_id", "content", "subagent_trajectory_ref", "extra"), place
        )
        losses.dropped(result, ("subagent_trajectory_ref", "extra"), place)
        found.append(result)
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
            conversation.add({"role": "tool", "tool_call_id": call_id, **said}, place)
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
    metrics = step["metrics"] if isinstance(step.get("metrics"), Mapping) else {}
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
    times = (_milliseconds(step.get("timestamp")) for step in steps if isinstance(step, Mapping))
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
        for step in document.get("steps") or []:
            observation = step.get("observation") if isinstance(step, Mapping) else None
            results = observation.get("results") if isinstance(observation, Mapping) else None
            for result in results if isinstance(results, list) else []:
                refs = result.get("subagent_trajectory_ref") if isinstance(result, Mapping) else ()
                for ref in refs if isinstance(refs, list) else [refs]:
                    if isinstance(ref, Mapping):
                        named += [str(ref[k]) for k in ("trajectory_id",) if ref.get(k)]
        waiting += _subagents(document)
    return has_cycle(links)


def _subagents(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    inner = document.get("subagent_trajectories")
    return [sub for sub in (inner if isinstance(inner, list) else []) if is_atif(sub)]
