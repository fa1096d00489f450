"""Rows for Hugging Face data sets and TRL: `messages` with `tools`, and KTO's unpaired rows.

`tools` is JSON text and so are the arguments of every call: as nested columns, `Dataset.from_list`
and Parquet give every call the arguments of every other call as nulls, and a chat template prints
them. TRL decodes `tools` that are text.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from palio.corpus.conversation import parse_arguments
from palio.corpus.readers.chat import read_chat, read_pair
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Imported, Loss
from palio.corpus.writers.exactness import Written, differences
from palio.records import Message, Tool, Trajectory

Arguments = Literal["string", "object"]
Tools = Literal["nested", "flat"]


def chat_row(
    trajectory: Trajectory, *, tools: Tools = "nested", arguments: Arguments = "string"
) -> Written:
    """One row with `messages`, `tools` and ids.

    Args:
        trajectory: what is written.
        tools: {"type", "function": {...}} or {"type", "name", "description", "parameters"}.
        arguments: JSON text, or an object where the text is one; for readers of JSON lines only,
            see the trap above.
    """
    row = {
        "messages": [openai_message(message, arguments) for message in trajectory.messages],
        **shared_columns(trajectory, tools),
    }
    return _measured(trajectory, row, read_chat(row, "hf"))


def kto_row(trajectory: Trajectory, label: bool, *, tools: Tools = "nested") -> Written:
    """One unpaired preference row: `prompt` up to the model's first turn, `completion`, `label`.

    A conversation without a turn of the model, or that starts with one, has no such row.
    """
    messages = trajectory.messages
    first = next((at for at, m in enumerate(messages) if m.role == "assistant"), 0)
    if not first:
        return Written((), (Loss(code="no_completion", where="messages"),))
    row = {
        "prompt": [openai_message(message) for message in messages[:first]],
        "completion": [openai_message(message) for message in messages[first:]],
        "label": label,
        **shared_columns(trajectory, tools),
    }
    return _measured(trajectory, row, read_pair(row, "kto"))


def _measured(trajectory: Trajectory, row: dict[str, Any], back: Imported) -> Written:
    return Written((row,), differences(trajectory, back.trajectory))


def shared_columns(trajectory: Trajectory, tools: Tools) -> dict[str, str]:
    """The columns that every row of a trajectory has beside its messages."""
    return {
        "tools": tools_text(trajectory.tools, tools),
        "trajectory_id": trajectory.trajectory_id,
        "problem_id": trajectory.problem_id,
        "agent": trajectory.agent.name,
        "model": trajectory.agent.model,
        "kind": trajectory.kind,
    }


def openai_message(message: Message, arguments: Arguments = "string") -> dict[str, Any]:
    """A message in OpenAI form with lists, arguments as asked for."""
    plain = message.to_openai()
    if "tool_calls" in plain:
        plain["tool_calls"] = list(plain["tool_calls"])
        if arguments == "object":
            for call in plain["tool_calls"]:
                found = parse_arguments(call["function"]["arguments"])
                if found is not None:
                    call["function"]["arguments"] = found
    return plain


def tools_text(tools: tuple[Tool, ...], form: Tools) -> str:
    """The schemas as JSON text; a flat one has the function's members beside `type`."""
    if form == "nested":
        return json_text(msgspec.to_builtins(tools))
    return json_text(
        [
            {"type": tool.get("type", "function"), **tool.get("function", {})}
            for tool in msgspec.to_builtins(tools)
        ]
    )
