"""A conversation, and what its source says of the run, become one trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palio.corpus.conversation import RECOMMEND, calls_of, ids_in
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.losses import Imported
from palio.corpus.readers.record import Note, events_of
from palio.records import AgentRef, Ending, Event, Message, Tool, Trajectory, bytes_digest

_sorted = msgspec.json.Encoder(order="sorted").encode


def external_agent(name: Any = "", model: Any = "", version: Any = "") -> AgentRef:
    """The agent of a foreign trace; what is no text counts as not said."""
    named, version_text, model_text = (
        text if isinstance(text, str) else "" for text in (name, version, model)
    )
    return AgentRef(
        name=named or "external", version=version_text or "1", kind="external", model=model_text
    )


def imported(
    conversation: Conversation,
    source: str,
    *,
    fallback: Any,
    events: tuple[Event, ...] | None = None,
    notes: Mapping[int, Note] | None = None,
    tools: tuple[Tool, ...] = (),
    **fields: Any,
) -> Imported:
    """The trajectory of a conversation with the losses listed so far.

    Args:
        conversation: the messages.
        source: format and file.
        fallback: what the id is made of when the source has none: the row itself.
        events: the record; None makes one of the conversation.
        notes: what the trace says about single messages, for that record.
        tools: nested schemas that the model was offered.
        fields: other fields of `Trajectory`; a None or "" counts as not said.
    """
    messages = tuple(conversation.messages)
    said = {key: value for key, value in fields.items() if value not in (None, "")}
    if events is None:
        events = events_of(messages, conversation.by_harness, notes)
    ended = any(call.name == "terminate" for call in calls_of(messages))
    base: dict[str, Any] = {
        "problem_id": "",
        "query": first_request(messages),
        "kind": "",
        "agent": external_agent(),
        "answer": last_answer(messages),
        "ending": Ending.terminated if ended else Ending.returned,
        "isolation": "unknown",
        "eligible": False,
    }
    if "trajectory_id" not in said:
        said["trajectory_id"] = bytes_digest(_sorted(fallback))[7:39]
    trajectory = Trajectory(
        **{**base, **said}, events=events, messages=messages, tools=tools, source=source
    )
    return Imported(trajectory, tuple(conversation.losses.all))


def first_request(messages: Sequence[Message]) -> str:
    """What the first user message asks."""
    return next((m.content for m in messages if m.role == "user"), "") or ""


def last_answer(messages: Sequence[Message]) -> str | None:
    """Ids of the last recommend_product call as comma text, None without such a call."""
    named = [ids_in(call.arguments) for call in calls_of(messages) if call.name == RECOMMEND]
    return ",".join(named[-1]) if named else None
