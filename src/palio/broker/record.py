"""The growing record of one run: events in order, each call linked, each request kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from palio.broker.echo import Prompts
from palio.broker.emission import read_emission
from palio.broker.ledger import Emitted, Ledger
from palio.broker.limits import Limits, Spent
from palio.broker.nonce import Mint, Minted, Proof
from palio.broker.wire import clean_value, load_json, message_size, plain_json
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

NO_PROOF = Proof("")


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

    def __init__(self, limits: Limits, query: str, mint: Mint) -> None:
        self.spent = Spent(limits)
        self.mint = mint
        self.answer: Any = None
        self.terminated = False
        self.tools: tuple[Tool, ...] = ()
        self.exhausted: Fault | None = None
        self._events: list[Event] = []
        self._history: list[Message] = []
        self._ledger = Ledger()
        self._prompts = Prompts(query)
        self._echoed: set[Emitted] = set()
        self._tools_size = 0

    @property
    def events(self) -> tuple[Event, ...]:
        """The events so far, in order of `seq`."""
        return tuple(self._events)

    def admit_call(self, size: int) -> str:
        """Count one tool call with `size` characters of arguments; else say why it is refused."""
        if self.terminated:
            return "this run was terminated, no more calls are carried out"
        return self._noted(self.spent.refuse_call(size))

    def admit_inference(self, messages: Sequence[Message], beside: int, tools: int) -> str:
        """Count one chat completion; else say why it is refused.

        Args:
            messages: the conversation that is sent.
            beside: characters of the request that are neither messages nor tools.
            tools: characters of its tools, which count when they change.
        """
        if self.terminated:
            # What is thought after the answer is no reason for it, and somebody pays for it.
            return "this run was terminated, no more completions are asked for"
        prefix = common_prefix(self._history, messages)
        extra = beside + (tools if tools != self._tools_size else 0)
        size = extra + sum(message_size(message) for message in messages[prefix:])
        refusal = self._noted(self.spent.refuse_inference(size))
        if not refusal:
            self._tools_size = tools
            self.spent.bytes += extra
        return refusal

    def _noted(self, refusal: str) -> str:
        if refusal and self.exhausted is None:
            self.exhausted = Fault(code=FaultCode.agent_budget_exhausted, what=refusal)
        return refusal

    def offer(self, tools: Any) -> None:
        """Remember the tool schemas of a request, the first time there are any."""
        if self.tools or not isinstance(tools, list | tuple) or not tools:
            return
        schemas = clean_value(load_json(plain_json(tools))) or ()
        self.tools = tuple(tool for tool in schemas if isinstance(tool, dict))

    def prove(self, tool: str, arguments: str, token: str, call_id: str, now_s: float) -> Proof:
        """What a dispatch proves; a valid proof is used up."""
        return self.mint.check(tool, arguments, token, call_id, now_s)

    def add_dispatch(
        self,
        tool: str,
        arguments: str,
        reply: ToolReply,
        span: Span,
        *,
        call_id: str = "",
        fault: Fault | None = None,
        proof: Proof = NO_PROOF,
    ) -> DispatchEvent:
        """Record one executed or refused tool call and link it to the completion that asked."""
        place = self._placed(tool, arguments, call_id, proof)
        self.spent.bytes += len(reply.result)
        event = DispatchEvent(
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
            nonce=proof.status,
            echoed=place in self._echoed,
        )
        self._events.append(event)
        # Code prints whatever its author likes, so its output counts as the host's only when the
        # model wrote the code: else a harness would print a call and have the model repeat it.
        if tool != "python_execute" or not (place is None or place in self._echoed):
            self._prompts.result(reply.result)
        if not reply.error and tool == "terminate":
            self.terminated = True
        elif not reply.error and tool == "recommend_product":
            self.answer = given_answer(arguments)
        return event

    def _placed(self, tool: str, arguments: str, call_id: str, proof: Proof) -> Emitted | None:
        """The emitted call that a dispatch carries out: the proven one, else by what it says.

        None where that call was carried out before, and for what strict proofs refused.
        """
        if proof.status == "valid" and proof.place is not None:
            return proof.place if self._ledger.consume_place(proof.place) else None
        if self.mint.policy.mode == "strict":
            return None
        return self._ledger.consume(tool, arguments, call_id)

    def add_inference(
        self, messages: Sequence[Message], params: dict[str, Any], outcome: Outcome, span: Span
    ) -> tuple[InferenceEvent, tuple[Minted, ...]]:
        """Record one chat completion and mint the proofs of the calls that it asks for.

        The event holds the new part of the request, and how it ended.
        """
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
        minted: tuple[Minted, ...] = ()
        if completion is not None:
            self._history.append(completion)
            size += message_size(completion)
            minted = self._emitted(event.seq, messages, completion, span.end)
        usage = outcome.usage
        self.spent.bytes += size
        self.spent.tokens += (usage.prompt_tokens or 0) + (
            usage.completion_tokens or 0
        ) or size // 4
        return event, minted

    def _emitted(
        self, seq: int, messages: Sequence[Message], completion: Message, now_s: float
    ) -> tuple[Minted, ...]:
        calls = read_emission(completion).calls
        self._ledger.emit(seq, calls)
        for position, echoed in enumerate(self._prompts.echoed(messages, calls)):
            if echoed:
                self._echoed.add(Emitted(seq, position))
        self._prompts.completion(completion)
        return self.mint.mint(seq, calls, now_s)


def given_answer(arguments: Any) -> Any:
    """`product_ids` (or `product_id`) of recommend_product arguments as given, or None.

    Only what no record can hold is changed, see `clean_value`.
    """
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments)
        except InputError:
            return None
    if not isinstance(arguments, dict):
        return None
    return clean_value(arguments.get("product_ids", arguments.get("product_id")))


def common_prefix(history: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many messages at the start of both are equal."""
    length = 0
    for ours, theirs in zip(history, messages, strict=False):
        if ours != theirs:
            break
        length += 1
    return length
