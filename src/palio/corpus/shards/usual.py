"""Messages of the usual shape are told apart while they are decoded, and looked at in one pass.

A clean message has one of four shapes. As a tagged union of them, the decoder proves what
`palio.corpus.shards.clean.told_of` would ask of every message: a result has a text and names a
call, a request has nothing but a text, and so on. Their JSON form is that of `Message`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, final

import msgspec

from palio.corpus.shards.clean import RESPONSE, TAG, CleanCall, CleanRow, Told, are_plain, is_text
from palio.corpus.shards.columns import Talk, talk_of


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


class _Course(NamedTuple):
    """A request, after rules or not, and turns of one call, each with its result.

    Attributes:
        start: place of the first turn.
        steps: how many turns.
        roles: of the messages; nobody: their names; counts: their calls.
    """

    start: int
    steps: int
    roles: list[str]
    nobody: list[None]
    counts: list[int]


@lru_cache(maxsize=256)
def _course_of(kinds: tuple[type[Usual], ...]) -> _Course | None:
    start = 2 if kinds[:1] == (Rules,) else 1
    steps = (len(kinds) - start) // 2
    if steps < 1 or kinds != (*(Rules, Request)[2 - start :], *(Turn, Result) * steps):
        return None
    counts = [int(kind is Turn) for kind in kinds]
    return _Course(start, steps, [kind.role for kind in kinds], [None] * len(kinds), counts)


def told_of_usual(messages: list[Usual]) -> Told | None:
    """`told_of`, where the decoder has asked half of the questions."""
    course = _course_of(tuple(map(type, messages)))
    told = None if course is None else _told_in_steps(messages, course)
    return told or _told_of_any(messages)


def _told_in_steps(messages: list[Any], course: _Course) -> Told | None:
    """The same, a column at a time, for what most agents do; None where a text needs a look.

    It takes less than a look at each message does, and the columns are made.
    """
    start, steps = course.start, course.steps
    turns, replies = messages[start::2], messages[start + 1 :: 2]
    made = [turn.tool_calls for turn in turns]
    calls = [*chain.from_iterable(made)]
    if len(calls) != steps or () in made:
        return None
    ids = [call.id for call in calls]
    if ids != [reply.tool_call_id for reply in replies] or len(set(ids)) != steps or "" in ids:
        return None
    if [reply.name for reply in replies] != course.nobody[:steps]:
        return None
    tools = [call.function.name for call in calls]
    arguments = [call.function.arguments for call in calls]
    results = [reply.content for reply in replies]
    thoughts = [turn.reasoning_content for turn in turns]
    spoken = [turn.content for turn in turns]
    opening = [message.content for message in messages[:start]]
    own = "".join([opening[-1], *filter(None, thoughts), *filter(None, spoken)])
    seen = "".join(results)
    if "<" in own or "None" in spoken:
        return None
    if "<" in seen and any(text.lstrip().startswith(RESPONSE) for text in results):
        return None
    asked = _BREAK.join(["", *arguments])
    if asked.count(_BREAK) != steps or asked.count(_OPENED) != steps:
        return None  # not an object each
    if "\0" in own or "\0" in seen or "\0" in asked or "\0" in "".join([opening[0], *ids, *tools]):
        return None
    size = len(messages)
    contents, thinking, answered = [None] * size, [None] * size, [None] * size
    contents[:start], contents[start::2], contents[start + 1 :: 2] = opening, spoken, results
    thinking[start::2], answered[start + 1 :: 2] = thoughts, ids
    talk = Talk(
        *(course.roles, contents, thinking, course.counts, answered, course.nobody),
        *(ids, tools, arguments),
    )
    if all(thoughts) and not any(map(str.isspace, thoughts)):
        return Told(talk, results, True, steps, steps, steps, True, True, [*opening, *thoughts])
    said = [thought or text or "" for thought, text in zip(thoughts, spoken, strict=True)]
    thinks = sum([bool(text) and not text.isspace() for text in thoughts])
    return Told(talk, results, True, steps, thinks, thinks, True, True, opening + said)


_BREAK, _OPENED = "\x1f", "\x1f{"


def _told_of_any(messages: list[Usual]) -> Told | None:
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
    talk = talk_of(messages)  # type: ignore[arg-type]  # a shape has what a message has
    if not are_plain(talk):
        return None
    opening = [message.role for message in messages[:2] if message.role != "system"]
    formed = formed and turns > 0 and opening[:1] == ["user"]
    tidy = tidy and (near or not waiting)
    return Told(talk, results, tidy, turns, thinking, acting, formed, ended, said)


def _is_result(name: str | None, content: str) -> bool:
    if name is not None and (not name or "\0" in name):
        return False
    return not content.lstrip().startswith(RESPONSE)
