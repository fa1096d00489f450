"""Arena dialogues (formats 1, 2, 4) become trajectories, with the proxy's record if there is one.

Read: the envelope of a run, the bare list of steps, the uploaded list, and upstream rollouts, whose
steps carry their prompt and whose results stand in `obs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palio.broker.emission import read_emission
from palio.broker.ledger import argument_key
from palio.broker.record import common_prefix
from palio.corpus.readers.assembly import imported
from palio.corpus.readers.calls import read_list, read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Imported, LossList, UnreadableError
from palio.corpus.readers.observed import Observed, observed, with_derived_id
from palio.corpus.readers.proxy import ProxyCall, read_proxy_calls
from palio.corpus.readers.record import events_of
from palio.corpus.readers.recording import Step, recorded
from palio.corpus.readers.shapes import listed, mapping, texted
from palio.records import (
    Ending,
    Event,
    Fault,
    FaultCode,
    FunctionCall,
    InferenceEvent,
    Message,
)

NO_RECORD = "no host record came with the dialogue: it is the agent's own account"
"""Stands in `Trajectory.differences` of a dialogue without proxy calls."""

_ENVELOPE = frozenset(("problem_id", "status", "execution_time", "error", "dialogue"))
_ENDED = ("FAILED", "TIMED_OUT")
_COUNTED = {"problem_id", "execution_time"}
_COUNTERS = ("inference_failure_count", "inference_total")
_STEP = frozenset(("completion", "extra_info", "prompt"))
_COMPLETION = frozenset(("reasoning_content", "content", "message"))
_MESSAGE = frozenset(("think", "tool_call", "response", "obs"))
_CALL = frozenset(("name", "parameters", "arguments", "tool_call_id", "id", "result", "results"))
_EXTRA = frozenset(("step", "query", "timestamp", "problem_id", "execution_time", "proxy_calls"))


def is_step(value: Any) -> bool:
    """Whether a value is one step of a dialogue."""
    return isinstance(value, dict) and (
        isinstance(value.get("completion"), dict)
        or (isinstance(value.get("completion"), str) and isinstance(value.get("extra_info"), dict))
        or (isinstance(value.get("extra_info"), dict) and "message" in value)
    )


def is_dialogue(value: Any) -> bool:
    """Whether a value is a list of steps."""
    return isinstance(value, list) and any(is_step(item) for item in value)


def is_upstream(value: Any) -> bool:
    """Whether a list of steps is an upstream rollout: its steps carry their prompts or `obs`."""
    return is_dialogue(value) and any(
        isinstance(step, dict) and (step.get("prompt") or "obs" in _said(step)) for step in value
    )


def is_envelope(row: Any) -> bool:
    """Whether a row is the envelope that a sandbox writes a problem."""
    if not isinstance(row, dict):
        return False
    if "dialogue" not in row:  # a run that ended before its agent returned anything
        return row.get("status") in _ENDED and row.keys() >= _COUNTED and "score" not in row
    return "status" in row or "problem_id" in row or is_dialogue(row["dialogue"])


def read_envelope(row: Mapping[str, Any], source: str) -> Imported:
    """Read one envelope; a run without a dialogue is kept with its fault."""
    losses = LossList()
    losses.unknown(row, (*_ENVELOPE, *_COUNTERS))
    losses.dropped(row, _COUNTERS)
    dialogue = row.get("dialogue")
    if isinstance(dialogue, str):
        try:
            dialogue = msgspec.json.decode(dialogue)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableError("json", f"the dialogue is no JSON: {error}") from error
    if dialogue is None:
        dialogue = []
    if not isinstance(dialogue, list):
        raise UnreadableError("dialogue", "the dialogue is no list of steps")
    ending, fault = _ending(row, losses)
    seconds = row.get("execution_time")
    return read_dialogue(
        dialogue,
        source,
        losses,
        fallback=row,
        problem_id=str(row.get("problem_id") or ""),
        ending=ending,
        fault=fault,
        duration_s=float(seconds) if isinstance(seconds, int | float) else None,
    )


def _ending(row: Mapping[str, Any], losses: LossList) -> tuple[Ending | None, Fault | None]:
    error = mapping(row.get("error"))
    said = (error.get("type"), error.get("message"))
    what = ": ".join(str(part) for part in said if part) or str(row.get("error") or "")
    losses.unknown(error, ("type", "message"), "error")
    status = str(row.get("status") or "").upper()
    if status == "TIMED_OUT":
        return Ending.timed_out, Fault(code=FaultCode.agent_timed_out, what=what)
    if status == "FAILED":
        return Ending.crashed, Fault(code=FaultCode.agent_crashed, what=what)
    if status not in ("", "SUCCESS"):
        losses.add("status", "status")
    if what:
        losses.add("not_carried", "error")
    return None, None


def read_dialogue(
    dialogue: Sequence[Any],
    source: str,
    losses: LossList | None = None,
    *,
    fallback: Any = None,
    **fields: Any,
) -> Imported:
    """Read a list of steps.

    With proxy calls the events are the proxy's record, tied to steps by time; without, the events
    follow the dialogue, a call counting as the model's when the text of its step asks for it, and
    the trajectory says that no record came with it.

    Raises:
        UnreadableError: one item is no step.
    """
    conversation = Conversation(losses)
    reading = _Reading(conversation)
    for index, step in enumerate(dialogue):
        if not is_step(step):
            raise UnreadableError("step", f"step {index} is no dialogue step")
        reading.add(step, f"[{index}]")
    if not conversation.messages:
        conversation.losses.add("absent_query", "")
        conversation.messages.append(Message(role="user", content=""))
    events, differences, tools = reading.events()
    seconds = reading.seconds
    return imported(
        conversation,
        source,
        fallback=dialogue if fallback is None else fallback,
        events=events,
        tools=read_tools(tools, conversation.losses, "proxy_calls.json_data.tools"),
        **{
            **fields,
            "query": reading.query or None,
            "problem_id": fields.get("problem_id") or reading.problem_id,
            "duration_s": fields.get("duration_s") or seconds or None,
            "differences": differences,
        },
    )


def _said(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `message` of a step, {} where there is none."""
    completion = step.get("completion")
    holder = completion if isinstance(completion, dict) else step
    said = holder.get("message")
    return {"response": said} if isinstance(said, str) and said else mapping(said)


class _Reading:
    """Steps read so far: their messages, and what the record will be tied to."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.losses = conversation.losses
        self.query = ""
        self.problem_id = ""
        self.seconds = 0.0
        self.steps: list[Step] = []
        self.proxies: list[ProxyCall] = []
        self.prompts: dict[int, tuple[Message, ...]] = {}

    def add(self, step: Mapping[str, Any], where: str) -> None:
        """Read one step."""
        self.losses.unknown(step, _STEP, where)
        extra = mapping(step.get("extra_info"))
        self._extra(extra, where)
        prompt = self._prompt(step.get("prompt"), where)
        self._open(extra, prompt, where)
        said = _said(step)
        completion = step.get("completion")
        completion = {"content": completion} if isinstance(completion, str) else mapping(completion)
        self.losses.unknown(completion, _COMPLETION, f"{where}.completion")
        self.losses.unknown(said, _MESSAGE, f"{where}.message")
        calls = read_list(said.get("tool_call"), f"{where}.tool_call", self.losses)
        plain = [call for call in calls if isinstance(call, dict)]
        earlier, own = observed(said.get("obs"), plain, where, self.losses)
        for found in earlier:
            self._result(found.result, found.call_id, found.where)
        if own:
            calls = [with_derived_id(c) if isinstance(c, dict) else c for c in calls]
        position = len(self.conversation.messages)
        if prompt:
            self.prompts[position] = prompt
        self._turn(completion, said, calls, own, where)
        claimed = self._claimed(completion, position)
        timestamp = extra.get("timestamp")
        at = float(timestamp) if isinstance(timestamp, int | float) else None
        self.steps.append(Step(at_ms=at, position=position, claimed=claimed, where=where))
        self.proxies += read_proxy_calls(
            extra.get("proxy_calls"), f"{where}.proxy_calls", self.losses
        )

    def _extra(self, extra: Mapping[str, Any], where: str) -> None:
        self.losses.unknown(extra, _EXTRA, f"{where}.extra_info")
        if isinstance(extra.get("problem_id"), str):
            self.problem_id = self.problem_id or extra["problem_id"]
        if isinstance(extra.get("execution_time"), int | float):
            self.seconds = max(self.seconds, float(extra["execution_time"]))

    def _prompt(self, prompt: Any, where: str) -> tuple[Message, ...]:
        """The messages of an upstream step's prompt."""
        if not prompt:
            return ()
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        reader = Conversation(self.losses)
        for index, raw in enumerate(listed(prompt)):
            reader.add(raw, f"{where}.prompt[{index}]")
        return tuple(reader.messages)

    def _open(self, extra: Mapping[str, Any], prompt: tuple[Message, ...], where: str) -> None:
        """The request comes first; a step that names another query is listed."""
        query = texted(extra.get("query"))
        asked = next((m.content for m in prompt if m.role == "user"), None)
        if not self.steps:
            self.query = query or asked or ""
            opening = prompt or (Message(role="user", content=self.query),)
            self.conversation.messages += opening
            if not self.query:
                self.losses.add("absent_query", where)
        elif query and query != self.query:
            self.losses.add("query_changed", f"{where}.extra_info.query")

    def _turn(
        self,
        completion: Mapping[str, Any],
        said: Mapping[str, Any],
        calls: list[Any],
        own: list[Observed],
        where: str,
    ) -> None:
        """The assistant message of a step and the results of its calls."""
        thinking = [
            text
            for text in (completion.get("reasoning_content"), said.get("think"))
            if isinstance(text, str) and text
        ]
        if len(thinking) == 2 and thinking[0] != thinking[1]:
            self.losses.add("joined_reasoning", where)
        raw: dict[str, Any] = {"role": "assistant"}
        if said:
            raw["content"] = said.get("response")
            raw["tool_calls"] = [_call(call) for call in calls]
        else:
            raw["content"] = _unwrapped_response(completion.get("content"))
        if thinking:
            raw["reasoning_content"] = "\n\n".join(dict.fromkeys(thinking))
        self.conversation.add(raw, where)
        made = self.conversation.messages[-1].tool_calls
        kept = [call for call in calls if isinstance(mapping(call).get("name"), str)]
        for index, (call, held) in enumerate(zip(kept, made, strict=False)):
            place = f"{where}.tool_call[{index}]"
            self.losses.unknown(call, _CALL, place)
            key = next((name for name in ("result", "results") if name in call), None)
            if key:
                self._result(call[key], held.id, place)
        for found in own:
            self._result(found.result, found.call_id, found.where)

    def _result(self, result: Any, call_id: str, where: str) -> None:
        text = result if isinstance(result, str) else json_text(result)
        self.conversation.add({"role": "tool", "tool_call_id": call_id, "content": text}, where)

    def _claimed(self, completion: Mapping[str, Any], position: int) -> Message:
        """What the step says that the model wrote: its text where it has one, else its message."""
        shown = self.conversation.messages[position]
        content = completion.get("content")
        if not isinstance(content, str) or not content.strip():
            return shown
        taken = read_emission(
            Message(role="assistant", content=content, reasoning_content=shown.reasoning_content)
        )
        return Message(
            role="assistant",
            content=shown.content,
            reasoning_content=shown.reasoning_content,
            tool_calls=taken.calls,
        )

    def events(self) -> tuple[tuple[Event, ...], tuple[str, ...], Any]:
        """The record, where it departs from the dialogue, and the tools that requests offered."""
        messages = self.conversation.messages
        if self.proxies:
            return recorded(messages, self.steps, self.proxies, self.losses)
        for step in self.steps:
            asked = [call.function for call in step.claimed.tool_calls]
            for call in messages[step.position].tool_calls:
                same = next((made for made in asked if _same(made, call.function)), None)
                if same is None:
                    self.conversation.by_harness.add(call.id)
                else:
                    asked.remove(same)
        events = events_of(messages, self.conversation.by_harness)
        differences = (NO_RECORD,) if any(step.claimed.tool_calls for step in self.steps) else ()
        return self._prompted(events), differences, None

    def _prompted(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """Inferences of an upstream rollout, whose prompts are known, with these as requests."""
        if not self.prompts:
            return events
        positions = iter([step.position for step in self.steps])
        history: list[Message] = []
        told: list[Event] = []
        for event in events:
            if isinstance(event, InferenceEvent):
                prompt = self.prompts.get(next(positions), ())
                prefix = common_prefix(history, prompt)
                event = msgspec.structs.replace(event, prefix=prefix, request=prompt[prefix:])
                history = [*prompt, *([event.completion] if event.completion else [])]
            told.append(event)
        return tuple(told)


def _same(one: FunctionCall, other: FunctionCall) -> bool:
    """Whether two calls ask for the same; equal texts need no canonical form."""
    if one.name != other.name or one.arguments == other.arguments:
        return one.name == other.name
    return argument_key(one.name, one.arguments) == argument_key(other.name, other.arguments)


def _call(call: Any) -> Any:
    """A dialogue call as one of OpenAI."""
    if not isinstance(call, dict):
        return call
    kept = {key: call[key] for key in ("parameters", "arguments") if key in call}
    return {
        "id": call.get("tool_call_id") or call.get("id"),
        "function": {"name": call.get("name"), **kept},
    }


def _unwrapped_response(content: Any) -> Any:
    """Text of a step without its `message`: the response tags go, the text in them stays."""
    if not isinstance(content, str):
        return content
    return content.replace("<response>", "").replace("</response>", "")
