"""The conversation of record is a pure function of the events: it can be rebuilt at any time."""

from __future__ import annotations

from collections.abc import Sequence

from palio.broker.emission import read_emission
from palio.broker.ledger import Emitted, Ledger
from palio.records import DispatchEvent, Event, Message, ToolCall
from palio.world.tools import ToolReply, tool_message


class _Turn:
    """One completion of the conversation and the tool results that belong to it."""

    def __init__(self, before: Sequence[Message], assistant: Message) -> None:
        self.before = tuple(before)
        self.assistant = assistant
        self.results: list[Message] = []

    def messages(self) -> tuple[Message, ...]:
        return (*self.before, self.assistant, *self.results)


def build_messages(query: str, events: Sequence[Event]) -> tuple[Message, ...]:
    """The record's chat messages in OpenAI form.

    They are: system and user messages of the first request (the query when there is none); each
    completion, taken apart by `read_emission`; after it the results, as the host holds them, of the
    calls of that completion that were carried out, in order of execution; and user or system
    messages that the harness added at the end of a growing chat. Calls that no completion made are
    in `events` only. Call ids are unique: the second "a" becomes "a-2", an empty one "call-SEQ-N".
    """
    turns: list[_Turn] = []
    by_seq: dict[int, _Turn] = {}
    opening: tuple[Message, ...] = ()
    ledger = Ledger()
    used: set[str] = set()
    history: list[Message] = []
    for event in events:
        if isinstance(event, DispatchEvent):
            place = _place(event, ledger)
            if place is not None:
                turn = by_seq[place.seq]
                call_id = turn.assistant.tool_calls[place.position].id
                turn.results.append(_result(event, call_id))
            continue
        history = [*history[: event.prefix], *event.request]
        if not opening:
            opening = tuple(m for m in history if m.role in ("system", "user"))
        if event.completion is None:
            continue
        emission = read_emission(event.completion)
        ledger.emit(event.seq, emission.calls)
        assistant = Message(
            role="assistant",
            content=emission.content,
            reasoning_content=emission.thinking,
            tool_calls=_unique(emission.calls, event.seq, used),
            rationalised=event.completion.rationalised,
        )
        turn = _Turn(_added(history) if turns else (), assistant)
        turns.append(turn)
        by_seq[event.seq] = turn
        history.append(event.completion)
    opening = opening or (Message(role="user", content=query),)
    return (*opening, *(message for turn in turns for message in turn.messages()))


def _place(event: DispatchEvent, ledger: Ledger) -> Emitted | None:
    """The call that an event carried out, among those of the completion that it names."""
    if event.emitted_by is None:
        return None
    return ledger.consume(event.tool, event.arguments, event.call_id, seq=event.emitted_by)


def _added(history: Sequence[Message]) -> list[Message]:
    """User and system messages after the last assistant message of a growing chat."""
    for at in range(len(history) - 1, -1, -1):
        if history[at].role == "assistant":
            return [m for m in history[at + 1 :] if m.role in ("system", "user")]
    return []


def _result(event: DispatchEvent, call_id: str) -> Message:
    reply = ToolReply(result=event.result, warnings=event.warnings, error=event.error)
    return Message(role="tool", content=tool_message(reply), tool_call_id=call_id)


def _unique(calls: Sequence[ToolCall], seq: int, used: set[str]) -> tuple[ToolCall, ...]:
    renamed = []
    for index, call in enumerate(calls):
        base = call.id or f"call-{seq}-{index}"
        call_id, n = base, 1
        while call_id in used:
            n += 1
            call_id = f"{base}-{n}"
        used.add(call_id)
        renamed.append(ToolCall(id=call_id, function=call.function))
    return tuple(renamed)
