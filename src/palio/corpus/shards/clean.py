"""What a clean chat row is: one of which the general reader would change and list nothing.

Only known keys, unique call ids, results that name an open call of their turn, texts as texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from palio.corpus.shards.columns import Talk, said_in, talk_of
from palio.records import FunctionCall, Message, ToolCall

TAG = re.compile(r"</?(?:think|tool_call|tool_response|response|obs)>|<\|im_(?:start|end)\|>")
_TAGS = ("<think>", "</think>", "<tool_call>", "<|")
OPEN, RESPONSE = "<", "<tool_response>"


class CleanFunction(FunctionCall, frozen=True, forbid_unknown_fields=True, gc=False):
    """Name and arguments of a call."""


class CleanCall(ToolCall, frozen=True, forbid_unknown_fields=True, gc=False):
    """A call with known keys only."""

    function: CleanFunction


class CleanMessage(Message, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message with known keys only."""

    tool_calls: tuple[CleanCall, ...] = ()


MessageT = TypeVar("MessageT")


class CleanRow(
    msgspec.Struct, Generic[MessageT], frozen=True, forbid_unknown_fields=True, gc=False
):
    """A chat row with known keys and plain types only."""

    messages: list[MessageT]
    tools: msgspec.Raw = msgspec.Raw(b"")
    id: str = ""
    trajectory_id: str = ""
    problem_id: str = ""
    query: str = ""
    kind: str = ""
    agent: str = ""
    model: str = ""
    cluster_id: str = ""


class Told(NamedTuple):
    """A clean conversation.

    Attributes:
        talk: the messages as columns, with every call in order.
        results: what calls were answered, in order; calls without an answer come last.
        tidy: whether each turn's results follow it at once, one a call and in order, but for what
            the last turn left open.
        turns: assistant messages; thinking: those that think; acting: those that also do or say.
        formed: whether roles, turns and texts are what the gate on format asks for.
        ended: whether the last turn calls or says something.
        said: what `palio.corpus.shards.columns.conversation_key` digests.
    """

    talk: Talk
    results: list[str]
    tidy: bool
    turns: int
    thinking: int
    acting: int
    formed: bool
    ended: bool
    said: list[str]


def told_of(messages: list[CleanMessage]) -> Told | None:
    """The calls and results of a conversation; None when it is not clean."""
    results: list[str] = []
    names: list[str] = []
    waiting: list[str] = []
    tidy, near, formed, ended = True, False, True, False
    turns = thinking = acting = 0
    for place, message in enumerate(messages):
        role, content = message.role, message.content
        if content is None:
            if role != "assistant" or not message.tool_calls:
                return None
        elif "\0" in content:
            return None
        if role == "tool":
            call_id = message.tool_call_id
            if call_id not in waiting or content is None or not _is_result(message, content):
                return None
            tidy = tidy and near and waiting[0] == call_id
            waiting.remove(call_id)
            results.append(content)
        elif role == "assistant":
            made, thought = message.tool_calls, message.reasoning_content
            tidy = tidy and not waiting
            waiting = [call.id for call in made]
            names += waiting
            turns += 1
            near = True
            ended = bool(made or (content and content.strip()))
            if content and not is_text(content, made):
                return None
            if thought:
                if "\0" in thought:
                    return None
                if thought.strip():
                    thinking += 1
                    acting += bool(made or content)
            if not ended or (OPEN in (content or "") or OPEN in (thought or "")):
                formed = formed and ended and not TAG.search(f"{content or ''}\n{thought or ''}")
            if message.tool_call_id is not None or message.rationalised or message.name:
                return None
        else:
            if content is None or not _is_request(message, content):
                return None
            near = False
            formed = formed and (role == "user" or place == 0)
    if not messages or len(set(names)) != len(names) or "" in names:
        return None
    talk = talk_of(messages)
    if not are_plain(talk):
        return None
    opening = [message.role for message in messages[:2] if message.role != "system"]
    formed = formed and turns > 0 and opening[:1] == ["user"]
    tidy = tidy and (near or not waiting)
    said = said_in(messages)
    return Told(talk, results, tidy, turns, thinking, acting, formed, ended, said)


def _is_result(message: CleanMessage, content: str) -> bool:
    """Whether the reader takes a tool message as it is; its texts were looked at."""
    if message.tool_calls or message.reasoning_content is not None or message.rationalised:
        return False
    name = message.name
    if name is not None and (not name or "\0" in name):
        return False
    first = content[:1]
    return not (first == "<" or first.isspace()) or not content.lstrip().startswith(RESPONSE)


def is_text(content: str, calls: Sequence[ToolCall]) -> bool:
    """Whether the content of a turn is what the model said and nothing that must be read."""
    if OPEN in content and any(tag in content for tag in _TAGS):
        return False
    return not (calls and content == "None")


def _is_request(message: CleanMessage, content: str) -> bool:
    if message.tool_calls or message.reasoning_content is not None or message.rationalised:
        return False
    if message.tool_call_id is not None or (message.name is not None and "\0" in message.name):
        return False
    return message.role == "system" or not content.lstrip().startswith(RESPONSE)


def are_plain(talk: Talk) -> bool:
    """Whether ids, names and arguments of calls are texts that the reader takes as they are."""
    for text in talk.arguments:
        if text[:1] != "{" and text.lstrip().startswith('"'):
            return False
    return "\0" not in "".join([*talk.ids, *talk.tools, *talk.arguments])


def is_plain(row: CleanRow[Any]) -> bool:
    """Whether the members of a row beside its messages hold no NUL."""
    texts = (row.id, row.trajectory_id, row.problem_id, row.query, row.kind, row.agent, row.model)
    return "\0" not in "".join(texts) and "\0" not in row.cluster_id
