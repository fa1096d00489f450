"""The growing record of one run: events in order, each call linked, each request kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from palio.broker.emission import read_emission
from palio.broker.ledger import Ledger
from palio.broker.limits import Limits, Spent
from palio.broker.wire import load_json, message_size, plain_json
from palio.records import (
    DispatchEvent,
    Event,
    Fault,
    FaultCode,
    InferenceEvent,
    InputError,
    Message,
    Tool,
    Usage,
)
from palio.world.tools import ToolReply


class Span(NamedTuple):
    """When something happened, in seconds since the run started."""

    start: float
    end: float

    @property
    def at_ms(self) -> float:
        """Milliseconds from the start of the run to the end of the span."""
        return round(self.end * 1000, 3)

    @property
    def duration_ms(self) -> float:
        """Length of the span in milliseconds."""
        return round((self.end - self.start) * 1000, 3)


class Outcome(NamedTuple):
    """How an inference ended: a completion, or a reason why there is none."""

    completion: Message | None = None
    finish: str = ""
    usage: Usage = Usage()
    fault: Fault | None = None


class RunRecord:
    """Events of a run and what follows from them; the session that owns it holds the lock.

    Attributes:
        answer: the last recommend_product argument that the tool accepted, as given.
        terminated: whether terminate was called.
        tools: the tool schemas of the first request that offered any.
        exhausted: the first budget fault.
    """

    def __init__(self, limits: Limits) -> None:
        self.spent = Spent(limits)
        self.answer: Any = None
        self.terminated = False
        self.tools: tuple[Tool, ...] = ()
        self.exhausted: Fault | None = None
        self._events: list[Event] = []
        self._history: list[Message] = []
        self._ledger = Ledger()

    @property
    def events(self) -> tuple[Event, ...]:
        """The events so far, in order of `seq`."""
        return tuple(self._events)

    def admit_call(self, size: int) -> str:
        """Count one tool call with `size` characters of arguments; else say why it is refused."""
        if self.terminated:
            return "this run was terminated, no more calls are carried out"
        return self._noted(self.spent.refuse_call(size))

    def admit_inference(self, messages: Sequence[Message]) -> str:
        """Count one chat completion; else say why it is refused."""
        prefix = common_prefix(self._history, messages)
        size = sum(message_size(message) for message in messages[prefix:])
        return self._noted(self.spent.refuse_inference(size))

    def _noted(self, refusal: str) -> str:
        if refusal and self.exhausted is None:
            self.exhausted = Fault(code=FaultCode.agent_budget_exhausted, what=refusal)
        return refusal

    def offer(self, tools: Any) -> None:
        """Remember the tool schemas of a request, the first time there are any."""
        if self.tools or not isinstance(tools, list | tuple) or not tools:
            return
        schemas = load_json(plain_json(tools))
        self.tools = tuple(tool for tool in schemas if isinstance(tool, dict))

    def add_dispatch(
        self,
        tool: str,
        arguments: str,
        reply: ToolReply,
        span: Span,
        *,
        call_id: str = "",
        fault: Fault | None = None,
    ) -> None:
        """Record one executed or refused tool call and link it to the completion that asked."""
        place = self._ledger.consume(tool, arguments, call_id)
        self.spent.bytes += len(reply.result)
        self._events.append(
            DispatchEvent(
                seq=len(self._events),
                at_ms=span.at_ms,
                duration_ms=span.duration_ms,
                tool=tool,
                arguments=arguments,
                result=reply.result,
                call_id=call_id,
                emitted_by=None if place is None else place.seq,
                error=reply.error,
                warnings=reply.warnings,
                fault=fault,
            )
        )
        if reply.error:
            return
        if tool == "terminate":
            self.terminated = True
        elif tool == "recommend_product":
            self.answer = given_answer(arguments)

    def add_inference(
        self, messages: Sequence[Message], params: dict[str, Any], outcome: Outcome, span: Span
    ) -> None:
        """Record one chat completion: the new part of its request, and how it ended."""
        prefix = common_prefix(self._history, messages)
        completion = outcome.completion
        event = InferenceEvent(
            seq=len(self._events),
            at_ms=span.at_ms,
            duration_ms=span.duration_ms,
            prefix=prefix,
            request=tuple(messages[prefix:]),
            completion=completion,
            params=params,
            finish_reason=outcome.finish,
            usage=outcome.usage,
            fault=outcome.fault,
        )
        self._events.append(event)
        self._history = list(messages)
        size = sum(message_size(message) for message in event.request)
        if completion is not None:
            self._history.append(completion)
            size += message_size(completion)
            self._ledger.emit(event.seq, read_emission(completion).calls)
        usage = outcome.usage
        self.spent.bytes += size
        self.spent.tokens += (usage.prompt_tokens or 0) + (
            usage.completion_tokens or 0
        ) or size // 4


def given_answer(arguments: Any) -> Any:
    """`product_ids` (or `product_id`) of recommend_product arguments exactly as given, or None."""
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments)
        except InputError:
            return None
    if not isinstance(arguments, dict):
        return None
    return arguments.get("product_ids", arguments.get("product_id"))


def common_prefix(history: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many messages at the start of both are equal."""
    length = 0
    for ours, theirs in zip(history, messages, strict=False):
        if ours != theirs:
            break
        length += 1
    return length
