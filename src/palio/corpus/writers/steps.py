"""Step-wise prompts for GRPO: the conversation so far, and what the teacher did next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palio.corpus.conversation import parse_arguments
from palio.corpus.readers.chat import read_chat
from palio.corpus.readers.decoding import json_text
from palio.corpus.readers.losses import Loss
from palio.corpus.writers.exactness import Written, differences
from palio.corpus.writers.hugging_face import Tools, openai_message, shared_columns
from palio.records import Message, ToolCall, Trajectory


def step_rows(trajectory: Trajectory, *, tools: Tools = "nested") -> Written:
    """One row for each turn in which the model calls a tool.

    Columns: `prompt` (messages before the turn), `teacher` (the turn as JSON text), `teacher_calls`
    (JSON text of [{"name", "arguments": object}]; arguments that are no object stay text), `step`
    from 0, and the shared ones. What follows the last call is in no row and listed.
    """
    shared = shared_columns(trajectory, tools)
    rows: list[dict[str, Any]] = []
    for at, message in enumerate(trajectory.messages):
        if at and message.role == "assistant" and message.tool_calls:
            rows.append(
                {
                    "prompt": [openai_message(before) for before in trajectory.messages[:at]],
                    "teacher": json_text(openai_message(message)),
                    "teacher_calls": json_text([_plain(call) for call in message.tool_calls]),
                    "step": len(rows),
                    **shared,
                }
            )
    if not rows:
        return Written((), (Loss(code="no_call", where="messages"),))
    back = read_chat({**shared, "messages": conversation_of(rows[-1])}, "grpo").trajectory
    kept = len(back.messages)
    lost = tuple(
        Loss(code="not_carried", where=f"messages[{at}]")
        for at in range(kept, len(trajectory.messages))
    )
    if not lost:
        return Written(tuple(rows), differences(trajectory, back))
    head: tuple[Message, ...] = trajectory.messages[:kept]
    shorter = msgspec.structs.replace(trajectory, messages=head)
    return Written(tuple(rows), (*differences(shorter, back), *lost))


def conversation_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a row's prompt and the teacher's turn after them."""
    return [*row["prompt"], msgspec.json.decode(row["teacher"])]


def _plain(call: ToolCall) -> dict[str, Any]:
    found = parse_arguments(call.function.arguments)
    arguments = call.function.arguments if found is None else found
    return {"name": call.function.name, "arguments": arguments}
