"""ATIF 1.7 documents: a trajectory as steps of user, system and agent, for other tools to read.

What ATIF has no field for stands in `extra` under "palio", so that palio reads its own documents
back whole; other readers see plain ATIF.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from palio.broker.emission import read_emission
from palio.corpus.conversation import parse_arguments
from palio.corpus.readers.atif import OWN, read_atif
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Loss
from palio.corpus.writers.exactness import OF_THE_READING, Written, differences
from palio.records import DispatchEvent, InferenceEvent, Message, ToolCall, Trajectory

VERSION = "ATIF-v1.7"
_SOURCE = {"system": "system", "user": "user", "assistant": "agent", "tool": "system"}


def atif_document(trajectory: Trajectory) -> Written:
    """One document; none for a trajectory without a message.

    Calls that no completion asked for and that are in the record only become agent steps with
    `llm_call_count` 0, as ATIF wants dispatches of the harness.
    """
    if not trajectory.messages:
        return Written((), (Loss(code="no_message", where="messages"),))
    steps = [
        {"step_id": number, **step} for number, step in enumerate(_Steps(trajectory).all(), start=1)
    ]
    agent: dict[str, Any] = {"name": trajectory.agent.name, "version": trajectory.agent.version}
    if trajectory.agent.model:
        agent["model_name"] = trajectory.agent.model
    if trajectory.tools:
        agent["tool_definitions"] = list(msgspec.to_builtins(trajectory.tools))
    document = {
        "schema_version": VERSION,
        "session_id": trajectory.trajectory_id,
        "trajectory_id": trajectory.trajectory_id,
        "agent": agent,
        "steps": steps,
        "extra": {OWN: _own_fields(trajectory)},
    }
    back = read_atif(document, "atif")[0].trajectory
    return Written((document,), differences(trajectory, back))


def _own_fields(trajectory: Trajectory) -> dict[str, Any]:
    """The fields of the trajectory that ATIF does not have."""
    plain: dict[str, Any] = msgspec.to_builtins(trajectory)
    for name in ("trajectory_id", "events", "messages", "tools", *OF_THE_READING):
        plain.pop(name, None)
    agent = trajectory.agent
    plain["agent"] = {"kind": agent.kind, "digest": agent.digest}
    plain["answer"] = msgspec.to_builtins(trajectory.answer)
    plain["ending"] = trajectory.ending.value
    return plain


class _Steps:
    """The steps of a trajectory, made from its messages beside its events."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._messages = trajectory.messages
        self._inferences = [e for e in trajectory.inferences if e.completion is not None]
        ids = {call.id for message in self._messages for call in message.tool_calls}
        self._by_harness = {
            event.call_id
            for event in trajectory.dispatches
            if event.emitted_by is None and event.call_id in ids
        }
        self._outside = [
            event
            for event in trajectory.dispatches
            if event.emitted_by is None and event.call_id not in ids
        ]
        self._next = 0

    def all(self) -> Iterator[dict[str, Any]]:
        """The steps in order, numbers left out."""
        position = 0
        while position < len(self._messages):
            message = self._messages[position]
            position += 1
            results = []
            while position < len(self._messages) and self._messages[position].role == "tool":
                if message.role == "tool":
                    break
                results.append(self._messages[position])
                position += 1
            if message.role == "assistant":
                yield self._agent(message, results)
            elif message.role == "tool":
                yield {"source": "system", "message": "", **_observation([message], ())}
            else:
                yield {**_spoken(message), **_observation(results, ())}
            yield from self._due(position)
        yield from map(_harness_step, self._outside)

    def _due(self, position: int) -> Iterator[dict[str, Any]]:
        """Dispatches of the harness that came before the model's next completion."""
        if position >= len(self._messages) or self._messages[position].role != "assistant":
            return
        if self._next < len(self._inferences):
            seq = self._inferences[self._next].seq
            while self._outside and self._outside[0].seq < seq:
                yield _harness_step(self._outside.pop(0))

    def _agent(self, message: Message, results: Sequence[Message]) -> dict[str, Any]:
        step = _spoken(message)
        if message.tool_calls:
            step["tool_calls"] = [_call(call) for call in message.tool_calls]
        event = self._inference(message)
        if event is None:
            step["llm_call_count"] = 0
        else:
            if message.reasoning_content is not None:
                step["reasoning_content"] = message.reasoning_content
            metrics = msgspec.to_builtins(event.usage)
            if metrics:
                step["metrics"] = metrics
            if isinstance(event.params.get("model"), str):
                step["model_name"] = event.params["model"]
            if isinstance(event.params.get("reasoning_effort"), str | float):
                step["reasoning_effort"] = event.params["reasoning_effort"]
        return {**step, **_observation(results, message.tool_calls)}

    def _inference(self, message: Message) -> InferenceEvent | None:
        """The completion that a message came from; None when the harness made it."""
        event = self._inferences[self._next] if self._next < len(self._inferences) else None
        if event is not None and not _is_of(event, message):
            ids = {call.id for call in message.tool_calls}
            event = None if ids and ids <= self._by_harness else event
        if event is not None:
            self._next += 1
        return event


def _is_of(event: InferenceEvent, message: Message) -> bool:
    assert event.completion is not None, "only answered inferences are kept"
    if event.completion == message:
        return True
    taken = read_emission(event.completion)
    asked = [(call.function.name, call.function.arguments) for call in taken.calls]
    made = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    return (taken.thinking, asked) == (message.reasoning_content, made)


def _spoken(message: Message) -> dict[str, Any]:
    """Source, text and palio's own marks of a message.

    ATIF has no null text: "" stands for null where there are calls, and for "" elsewhere.
    """
    own: dict[str, Any] = {}
    if message.content is None and not message.tool_calls:
        own["content"] = None
    if message.content == "" and message.tool_calls:
        own["content"] = ""
    if message.name is not None:
        own["name"] = message.name
    if message.rationalised:
        own["rationalised"] = True
    step: dict[str, Any] = {"source": _SOURCE[message.role], "message": message.content or ""}
    return {**step, "extra": {OWN: own}} if own else step


def _call(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object, and as text where the object is not the text."""
    text = call.function.arguments
    arguments = parse_arguments(text)
    plain: dict[str, Any] = {
        "tool_call_id": call.id,
        "function_name": call.function.name,
        "arguments": arguments or {},
    }
    if arguments is None or json_text(arguments) != text:
        plain["extra"] = {OWN: {"arguments": text}}
    return plain


def _observation(results: Sequence[Message], calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The results of a step; ATIF allows a call id only where the step has that call."""
    if not results:
        return {}
    ids = {call.id for call in calls}
    found = []
    for result in results:
        plain: dict[str, Any] = {"content": result.content or ""}
        if result.tool_call_id in ids:
            plain["source_call_id"] = result.tool_call_id
        own = {"name": result.name} if result.name is not None else {}
        if result.tool_call_id is not None and result.tool_call_id not in ids:
            own["tool_call_id"] = result.tool_call_id
        found.append({**plain, "extra": {OWN: own}} if own else plain)
    return {"observation": {"results": found}}


def _harness_step(event: DispatchEvent) -> dict[str, Any]:
    call_id = event.call_id or f"dispatch-{event.seq}"
    found = parse_arguments(event.arguments)
    call = {"tool_call_id": call_id, "function_name": event.tool, "arguments": found or {}}
    return {
        "source": "agent",
        "message": "",
        "tool_calls": [call],
        "observation": {"results": [{"source_call_id": call_id, "content": event.result}]},
        "llm_call_count": 0,
    }
