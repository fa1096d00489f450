"""Random conversations that every format can hold, as trajectories that a reader would make."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.conversation import Conversation
from palio.records import FunctionCall, Message, ToolCall, Trajectory

TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="<\x00"), max_size=12
).filter(lambda text: text != "None")
NAMES = st.sampled_from(["find_product", "view_product_information", "recommend_product"])
OBJECTS = st.dictionaries(
    TEXT, st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3
)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


ARGUMENTS = st.one_of(
    OBJECTS.map(compact),
    OBJECTS.map(json.dumps),  # spaces and escapes: the same object, another text
    st.sampled_from(["", "{broken", "[1]", "7", "null"]),
)
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"tool {name}",
            "parameters": {"type": "object", "properties": {f"only_{name}": {"type": "string"}}},
        },
    }
    for name in ("find_product", "view_product_information")
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """[system,] user, turns of the model with results in any order, some of them missing."""
    messages = [Message(role="system", content=draw(TEXT))] if draw(st.booleans()) else []
    messages.append(Message(role="user", content=draw(TEXT)))
    for turn in range(draw(st.integers(0, 4))):
        calls = tuple(
            ToolCall(
                id=f"c{turn}-{n}",
                function=FunctionCall(name=draw(NAMES), arguments=draw(ARGUMENTS)),
            )
            for n in range(draw(st.integers(0, 3)))
        )
        messages.append(
            Message(
                role="assistant",
                content=draw(st.none() | TEXT),
                reasoning_content=draw(st.none() | TEXT),
                tool_calls=calls,
            )
        )
        answered = draw(st.permutations(calls)) if calls else []
        for call in answered[: draw(st.integers(0, len(calls)))]:
            name = draw(st.none() | st.just(call.function.name))
            messages.append(
                Message(role="tool", content=draw(TEXT), tool_call_id=call.id, name=name)
            )
    return tuple(messages)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """A conversation as a reader of chat rows would give it: the subset that all formats share."""
    conversation = Conversation()
    conversation.messages += draw(conversations())
    return imported(
        conversation,
        "test",
        fallback=None,
        trajectory_id=draw(TEXT.filter(bool)),
        problem_id=draw(TEXT),
        kind=draw(st.sampled_from(["", "product", "shop"])),
        agent=external_agent(draw(TEXT.filter(bool)), draw(TEXT)),
        tools=draw(st.sampled_from([(), TOOLS])),
    ).trajectory
