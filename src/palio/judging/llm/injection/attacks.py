"""Attacks on a judge are data: each says where an agent or a shop would put which text."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from palio.records.base import Record
from palio.records.message import FunctionCall, Message, ToolCall
from palio.records.trajectory import DispatchEvent, Event, InferenceEvent, Trajectory

PACKAGE = "palio.judging.llm.injection"
Channel = Literal[
    "thinking", "content", "argument", "prompt", "tool", "name", "title", "result", "query"
]


class Attack(Record, frozen=True, forbid_unknown_fields=True):
    """One attack.

    Attributes:
        channel: thinking, content, argument and name (of a tool) are the agent's completions;
            prompt and tool are messages that it puts into its requests; title and result are what
            shops write; query is what the shopper asks.
        repeat: how often the text stands there.
        then: text behind it.
    """

    name: str
    channel: Channel
    text: str
    repeat: int = 1
    then: str = ""
    family: str = ""

    @property
    def payload(self) -> str:
        """The whole text."""
        return self.text * self.repeat + self.then


class _File(Record, frozen=True, forbid_unknown_fields=True):
    family: str
    attacks: tuple[Attack, ...]


@cache
def packaged_attacks() -> tuple[Attack, ...]:
    """All attacks that are shipped, by family and in the order of the files."""
    found: list[Attack] = []
    folder = files(PACKAGE).joinpath("attacks")
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if not entry.name.endswith(".toml"):
            continue
        held = msgspec.convert(tomllib.loads(entry.read_text(encoding="utf-8")), _File)
        found += [msgspec.structs.replace(one, family=held.family) for one in held.attacks]
    return tuple(found)


@cache
def packaged_bases() -> tuple[Trajectory, ...]:
    """Honest runs of each bin below 0.9 that attacks are tried on."""
    data = files(PACKAGE).joinpath("bases.json").read_bytes()
    return tuple(msgspec.json.decode(data, type=list[Trajectory]))


def attacked(base: Trajectory, attack: Attack) -> Trajectory:
    """The run with the attack in it; nothing else changes.

    Thinking, content, argument and name go into the last completion, a title or result into the
    first product shown.
    """
    if attack.channel == "query":
        return _named(base, attack, query=f"{base.query} {attack.payload}")
    events = list(base.events)
    if attack.channel in ("title", "result"):
        place = next(at for at, one in enumerate(events) if _shows_product(one))
        change: Callable[[Any, Attack], Event] = _shop_writes
    else:
        place = max(at for at, one in enumerate(events) if isinstance(one, InferenceEvent))
        change = _agent_writes
    events[place] = change(events[place], attack)
    return _named(base, attack, events=tuple(events))


def _named(base: Trajectory, attack: Attack, **fields: Any) -> Trajectory:
    name = f"{base.trajectory_id}+{attack.name}"
    return msgspec.structs.replace(base, trajectory_id=name, **fields)


def _shows_product(event: Event) -> bool:
    return isinstance(event, DispatchEvent) and '"product_id"' in event.result


def _shop_writes(event: DispatchEvent, attack: Attack) -> Event:
    rows = msgspec.json.decode(event.result)
    row = rows[0]
    if attack.channel == "title":
        row["title"] = f"{row.get('title', '')} {attack.payload}".strip()
    else:
        row["description"] = attack.payload
    return msgspec.structs.replace(event, result=msgspec.json.encode(rows).decode())


def _agent_writes(event: InferenceEvent, attack: Attack) -> Event:
    payload = attack.payload
    if attack.channel in ("prompt", "tool"):
        role: Literal["system", "tool"] = "system" if attack.channel == "prompt" else "tool"
        told = Message(role=role, content=payload)
        return msgspec.structs.replace(event, request=(*event.request, told))
    held = event.completion or Message(role="assistant")
    if attack.channel == "thinking":
        text = f"{held.reasoning_content or ''}\n{payload}".strip("\n")
        made = msgspec.structs.replace(held, reasoning_content=text)
    elif attack.channel == "content":
        made = msgspec.structs.replace(held, content=f"{held.content or ''}{payload}")
    else:
        name, arguments = ("find_product", payload) if attack.channel == "argument" else (
            payload, "{}"
        )  # fmt: skip
        call = ToolCall(id="attack", function=FunctionCall(name=name, arguments=arguments))
        made = msgspec.structs.replace(held, tool_calls=(*held.tool_calls, call))
    return msgspec.structs.replace(event, completion=made)
