"""A run's record is rebuilt from the requests that its proxy logged, tied to its steps by time.

A request belongs to the first step whose time is not before its own: a heuristic, since the log
names no step. A dispatch counts as the model's when a completion before it asked for it by name and
canonical arguments, so the evidence stays "heuristic".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from palio.broker.conversation import build_messages
from palio.broker.emission import read_emission
from palio.broker.ledger import Ledger, argument_key
from palio.broker.record import common_prefix
from palio.broker.wire import read_message
from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Imported, LossList
from palio.corpus.readers.proxy import (
    ProxyCall,
    logged_arguments,
    logged_choice,
    logged_completion,
    logged_error,
    logged_fault,
    logged_number,
    logged_usage,
    read_proxy_calls,
    told_truly,
)
from palio.corpus.readers.shapes import listed, mapping
from palio.judging.answers import ungrounded
from palio.records import DispatchEvent, Event, InferenceEvent, InputError, Message, ToolCall

_ALWAYS_PROXIED = frozenset(("find_product", "view_product_information"))


UNLOGGED = "a completion is not in the log whole: who emitted a dispatch after it may be unknown"
"""Stands in `Trajectory.differences` of a log in which some completion cannot be read."""


class Step(NamedTuple):
    """A step of the dialogue.

    Attributes:
        at_ms: its time, None when it has none.
        position: of its assistant message in the conversation.
        claimed: what it says that the model wrote.
    """

    at_ms: float | None
    position: int
    claimed: Message
    where: str


class Record(NamedTuple):
    """Events, where the dialogue departs from them, and the tools that requests offered."""

    events: tuple[Event, ...]
    differences: tuple[str, ...]
    tools: Any


def read_log(rows: Sequence[Mapping[str, Any]], source: str, problem_id: str) -> Imported:
    """A request log alone: the conversation is what its completions and dispatches show."""
    losses = LossList()
    calls = read_proxy_calls(list(rows), "", losses)
    record = recorded((), (), calls, losses)
    conversation = Conversation(losses)
    conversation.messages += build_messages("", record.events)
    query = next((m.content for m in conversation.messages if m.role == "user"), "")
    if not query:
        losses.add("absent_query", "")
    models = (
        call.raw["json_data"].get("model")
        for call in calls
        if isinstance(call.raw.get("json_data"), dict)
    )
    return imported(
        conversation,
        source,
        fallback=list(rows),
        events=record.events,
        tools=read_tools(record.tools, losses, "json_data.tools"),
        problem_id=problem_id,
        differences=record.differences,
        agent=external_agent(model=next((model for model in models if model), "")),
    )


def recorded(
    messages: Sequence[Message],
    steps: Sequence[Step],
    calls: Sequence[ProxyCall],
    losses: LossList,
) -> Record:
    """The record of a run from its logged requests.

    Calls of the dialogue that no request carried out have an event when their tool does not go
    through the proxy (recommend_product, terminate); otherwise they are a difference.
    """
    work = _Recording(messages, steps, sorted(calls, key=lambda call: call.at_ms), losses)
    for number in range(len(steps) or 1):
        work.step(number)
    return Record(tuple(work.events), tuple(work.differences), work.tools)


class _Recording:
    """Builds the events of one run, step by step."""

    def __init__(
        self,
        messages: Sequence[Message],
        steps: Sequence[Step],
        calls: Sequence[ProxyCall],
        losses: LossList,
    ) -> None:
        self.events: list[Event] = []
        self.differences: list[str] = []
        self.tools: Any = None
        self._messages = messages
        self._steps = steps
        self._losses = losses
        self._ledger = Ledger()
        self._history: list[Message] = []
        self._results = {m.tool_call_id: m.content or "" for m in messages if m.role == "tool"}
        self._proxied = _ALWAYS_PROXIED | {call.tool for call in calls if call.tool}
        starts = [call.at_ms - logged_number(call.raw.get("duration_ms")) for call in calls]
        self._origin = min(starts, default=0.0)
        # the latest time up to each step: a step is the first not before t where this reaches t
        times = (-math.inf if step.at_ms is None else step.at_ms for step in steps)
        self._latest = list(accumulate(times, max))
        self._owned: dict[int, list[ProxyCall]] = {}
        for call in calls:
            self._owned.setdefault(self._owner(call), []).append(call)
        self._match = self._matches(calls)

    def _owner(self, call: ProxyCall) -> int:
        """The first step whose time is not before the call's; the last for what came later."""
        number = bisect_left(self._latest, call.at_ms)
        if number < len(self._steps) or not self._steps:
            return min(number, max(len(self._steps) - 1, 0))
        self._losses.add("after_last_step", call.where)
        return len(self._steps) - 1

    def _matches(self, calls: Sequence[ProxyCall]) -> dict[str, ToolCall]:
        """Place of a logged dispatch -> the call of the dialogue that it carried out.

        Calls of the same step come first; a time may be off by a step, so the first equal call of
        any step comes next.
        """
        here: dict[tuple[int, str, str], deque[ToolCall]] = {}
        anywhere: dict[tuple[str, str], deque[ToolCall]] = {}
        for number, step in enumerate(self._steps):
            for call in self._messages[step.position].tool_calls:
                name, key = call.function.name, argument_key(*_asked(call))
                here.setdefault((number, name, key), deque()).append(call)
                anywhere.setdefault((name, key), deque()).append(call)
        taken: set[str] = set()
        found: dict[str, ToolCall] = {}
        keys = {c.where: argument_key(c.tool, logged_arguments(c.raw)) for c in calls if c.tool}
        for number, owned in self._owned.items():
            for dispatch in owned:
                waiting = here.get((number, dispatch.tool, keys.get(dispatch.where, "")))
                if dispatch.tool and waiting:
                    found[dispatch.where] = waiting.popleft()
                    taken.add(found[dispatch.where].id)
        for dispatch in calls:
            waiting = anywhere.get((dispatch.tool, keys.get(dispatch.where, "")))
            if not dispatch.tool or dispatch.where in found or not waiting:
                continue
            while waiting and waiting[0].id in taken:
                waiting.popleft()
            if waiting:
                found[dispatch.where] = waiting.popleft()
                taken.add(found[dispatch.where].id)
        return found

    def step(self, number: int) -> None:
        """Add the events of one step: its requests in order, then its calls that need none."""
        claimed = self._steps[number].claimed if self._steps else None
        for call in self._owned.get(number, []):
            if call.tool:
                self._dispatch(call)
            elif self._inference(call, claimed):
                claimed = None
        if not self._steps:
            return
        step = self._steps[number]
        carried = {call.id for call in self._match.values()}
        for made in self._messages[step.position].tool_calls:
            if made.id in carried:
                continue
            if made.function.name in self._proxied:
                self.differences.append(
                    f"step {number + 1}: {made.function.name} {made.function.arguments[:80]} "
                    "is not in the proxy's record"
                )
            elif made.id in self._results:
                self._local(made, step)

    def _inference(self, call: ProxyCall, claimed: Message | None) -> bool:
        """Add one completion; gives whether the step's own account had to stand in for it."""
        raw = call.raw
        asked = mapping(raw.get("json_data"))
        answer = mapping(raw.get("response"))
        self.tools = self.tools or asked.get("tools")
        request = self._request(asked, call.where)
        prefix = common_prefix(self._history, request) if request else len(self._history)
        fault = logged_fault(raw)
        completion = None if fault else logged_completion(answer)
        used = completion is None and fault is None
        if used:
            code = "completion_claimed" if claimed else "completion_unknown"
            self._losses.add(code, call.where)
            if not claimed and UNLOGGED not in self.differences:
                self.differences.append(UNLOGGED)
            completion = claimed or Message(role="assistant")
        seq = len(self.events)
        self.events.append(
            InferenceEvent(
                seq=seq,
                at_ms=call.at_ms - self._origin,
                duration_ms=logged_number(raw.get("duration_ms")),
                prefix=prefix,
                request=tuple(request[prefix:]),
                completion=completion,
                params={k: v for k, v in asked.items() if k not in ("messages", "tools")},
                finish_reason=str(logged_choice(answer).get("finish_reason") or ""),
                usage=logged_usage(answer.get("usage")),
                fault=fault,
            )
        )
        if request:
            self._history = [*request]
        if completion is not None:
            self._history.append(completion)
            self._ledger.emit(seq, read_emission(completion).calls)
        return used and claimed is not None

    def _request(self, asked: Mapping[str, Any], where: str) -> list[Message]:
        """The messages of a request; where the log has none, the dialogue's opening."""
        given = asked.get("messages")
        if not isinstance(given, list):
            if self._history or not self._steps:
                return []
            return list(self._messages[: self._steps[0].position])
        try:
            return [read_message(raw) for raw in given]
        except (InputError, TypeError):
            self._losses.add("request_shape", where)
            return []

    def _dispatch(self, call: ProxyCall) -> None:
        arguments = logged_arguments(call.raw)
        own = self._match.get(call.where)
        place = self._ledger.consume(call.tool, arguments)
        claimed = self._results.get(own.id) if own else None
        self.events.append(
            DispatchEvent(
                seq=len(self.events),
                at_ms=call.at_ms - self._origin,
                duration_ms=logged_number(call.raw.get("duration_ms")),
                tool=call.tool,
                arguments=arguments,
                result=self._result(call, claimed),
                call_id=own.id if own else "",
                emitted_by=place.seq if place else None,
                error=logged_error(call.raw),
            )
        )

    def _result(self, call: ProxyCall, claimed: str | None) -> str:
        """What the tool answered: as logged, else as the dialogue has it, else the ids alone."""
        if call.raw.get("response") is not None:
            held = call.raw["response"]
            if claimed is not None and not told_truly(claimed, held):
                self.differences.append(
                    f"{call.tool} {logged_arguments(call.raw)[:80]}: the dialogue shows another "
                    "result than the proxy's record"
                )
            return held if isinstance(held, str) else json_text(held)
        ids = call.raw.get("result_product_ids")
        ids = [str(one) for one in listed(ids)]
        rows = json_text([{"product_id": one} for one in ids])
        if claimed is not None:
            self._losses.add("result_claimed", call.where)
            shown = [one for one in _ids_shown(claimed) if ids and one not in ids]
            if shown:
                self.differences.append(
                    f"{call.tool} {logged_arguments(call.raw)[:80]}: the dialogue shows "
                    f"{shown[0]}, which the proxy's record of the result does not have"
                )
            return claimed
        self._losses.add("result_reduced" if ids else "result_unknown", call.where)
        return rows if ids else ""

    def _local(self, call: ToolCall, step: Step) -> None:
        place = self._ledger.consume(call.function.name, call.function.arguments)
        self.events.append(
            DispatchEvent(
                seq=len(self.events),
                at_ms=max((step.at_ms or self._origin) - self._origin, 0.0),
                duration_ms=0.0,
                tool=call.function.name,
                arguments=call.function.arguments,
                result=self._results[call.id],
                call_id=call.id,
                emitted_by=place.seq if place else None,
            )
        )


def _asked(call: ToolCall) -> tuple[str, str]:
    return call.function.name, call.function.arguments


def _ids_shown(result: str) -> list[str]:
    """Product ids that a result names under that key."""
    found = []
    for piece in result.split('"product_id"')[1:]:
        value = piece.lstrip(' :"').split('"', 1)[0].split(",", 1)[0].rstrip("}] ")
        if value and not ungrounded([value], [result]):
            found.append(value)
    return found
