"""A foreign conversation gets the events a host would have recorded, so that judges can read it.

A call in an assistant message is the model's by construction; a call that carries a mark of the
harness is nobody's. The evidence stays "heuristic": the conversation is all that vouches for it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from palio.corpus.conversation import turns
from palio.records import DispatchEvent, Event, InferenceEvent, Message, Record, Usage


class Note(Record, frozen=True):
    """What a trace says about one assistant message.

    Attributes:
        at_ms: milliseconds since the run started.
        inferred: whether a model wrote the message; a harness did otherwise.
        params: model and sampling parameters that differ from the run's.
    """

    at_ms: float = 0.0
    duration_ms: float = 0.0
    usage: Usage = Usage()
    params: dict[str, Any] = {}
    finish_reason: str = ""
    inferred: bool = True


def events_of(
    messages: Sequence[Message],
    by_harness: Container[str] = frozenset(),
    notes: Mapping[int, Note] | None = None,
) -> tuple[Event, ...]:
    """One inference an assistant message, one dispatch an answered call, in order.

    Times are 0 where `notes` have none. Calls without a result were not seen to be carried out and
    have no event.

    Args:
        messages: the conversation, its call ids unique.
        by_harness: ids of calls that the trace marks as dispatched without the model.
        notes: position of an assistant message -> what the trace says about it.
    """
    events: list[Event] = []
    done = 0  # messages that stand in an event so far
    replies_of = {id(message): replies for message, replies in turns(messages)}
    for position, message in enumerate(messages):
        if message.role != "assistant":
            continue
        note = (notes or {}).get(position, Note())
        seq: int | None = None
        if note.inferred:
            seq = len(events)
            events.append(
                InferenceEvent(
                    seq=seq,
                    at_ms=note.at_ms,
                    duration_ms=note.duration_ms,
                    prefix=done,
                    request=tuple(messages[done:position]),
                    completion=message,
                    params=note.params,
                    finish_reason=note.finish_reason,
                    usage=note.usage,
                )
            )
            done = position + 1
        results = {reply.tool_call_id: reply.content or "" for reply in replies_of[id(message)]}
        for call in message.tool_calls:
            if call.id in results:
                events.append(
                    DispatchEvent(
                        seq=len(events),
                        at_ms=note.at_ms,
                        duration_ms=0.0,
                        tool=call.function.name,
                        arguments=call.function.arguments,
                        result=results[call.id],
                        call_id=call.id,
                        emitted_by=None if call.id in by_harness else seq,
                    )
                )
    return tuple(events)
