"""Messages of the usual shape are told apart while they are decoded, and looked at in one pass.

A clean message has one of four shapes. As a tagged union of them, the decoder proves what
`palio.corpus.shards.clean.told_of` would ask of every message: a result has a text and names a
call, a request has nothing but a text, and so on. Their JSON form is that of `Message`.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from palio.corpus.shards.clean import RESPONSE, TAG, CleanCall, CleanRow, Told, are_plain, is_text


class _Shape(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
    tag_field="role",
    kw_only=True,
):
    """What no shape has stands here as it does in a `Message`."""


@final
class Request(_Shape, frozen=True, tag="user"):
    """What the user asked."""

    content: str
    role = "user"
    reasoning_content = tool_call_id = name = None
    tool_calls = ()
    rationalised = False


@final
class Rules(_Shape, frozen=True, tag="system"):
    """What the harness said."""

    content: str
    role = "system"
    reasoning_content = tool_call_id = name = None
    tool_calls = ()
    rationalised = False


@final
class Turn(_Shape, frozen=True, tag="assistant"):
    """What the model thought, said and called."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[CleanCall, ...] = ()
    role = "assistant"
    tool_call_id = name = None
    rationalised = False


@final
class Result(_Shape, frozen=True, tag="tool"):
    """What a call was answered."""

    content: str
    tool_call_id: str
    name: str | None = None
    role = "tool"
    reasoning_content = None
    tool_calls = ()
    rationalised = False


Usual: TypeAlias = Request | Rules | Turn | Result
UsualRow = CleanRow[Usual]


def told_of_usual(messages: list[Usual]) -> Told | None:
    """`told_of`, where the decoder has asked half of the questions."""
    calls: list[CleanCall] = []
    results: list[str] = []
    said: list[str] = []
    names: list[str] = []
    waiting: list[str] = []
    tidy, near, formed, ended = True, False, True, False
    turns = thinking = acting = 0
    for place, message in enumerate(messages):
        if type(message) is Result:
            content, call_id = message.content, message.tool_call_id
            if call_id not in waiting or "\0" in content:
                return None
            plain = message.name is None and content[:1] in "[{"  # as tools write
            if not plain and not _is_result(message.name, content):
                return None
            tidy = tidy and near and waiting[0] == call_id
            waiting.remove(call_id)
            results.append(content)
        elif type(message) is Turn:
            spoken, thought, made = message.content, message.reasoning_content, message.tool_calls
            tidy = tidy and not waiting
            waiting = [call.id for call in made]
            names += waiting
            calls += made
            turns += 1
            near = True
            ended = bool(made or (spoken and spoken.strip()))
            if spoken:
                if "\0" in spoken or not is_text(spoken, made):
                    return None
            elif spoken is None and not made:
                return None
            if thought:
                if "\0" in thought:
                    return None
                if thought.strip():
                    thinking += 1
                    acting += bool(made or spoken)
            said.append(thought or spoken or "")
            if not ended or (thought and "<" in thought) or (spoken and "<" in spoken):
                formed = formed and ended and not TAG.search(f"{spoken or ''}\n{thought or ''}")
        else:
            told, asked = message.content, type(message) is Request
            if "\0" in told or (asked and told.lstrip().startswith(RESPONSE)):
                return None
            near = False
            formed = formed and (asked or place == 0)
            said.append(told)
    if not messages or len(set(names)) != len(names) or "" in names:
        return None
    if not are_plain(names, calls):
        return None
    opening = [message.role for message in messages[:2] if message.role != "system"]
    formed = formed and turns > 0 and opening[:1] == ["user"]
    tidy = tidy and (near or not waiting)
    return Told(calls, results, tidy, turns, thinking, acting, formed, ended, said)


def _is_result(name: str | None, content: str) -> bool:
    if name is not None and (not name or "\0" in name):
        return False
    return not content.lstrip().startswith(RESPONSE)
