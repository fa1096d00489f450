"""Chat messages in OpenAI form; the one shape in which palio trains and exports."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from palio.records.base import Record

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(Record, frozen=True):
    """Name and arguments; `arguments` is always a JSON string, never an object."""

    name: str
    arguments: str


class ToolCall(Record, frozen=True, omit_defaults=False):
    """One call that an assistant message makes."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(Record, frozen=True):
    """One chat message.

    Attributes:
        content: None, "" and text are three different things and stay so.
        reasoning_content: the thinking before the answer, None if there was none.
        tool_call_id: on role "tool", the call that this result answers.
        rationalised: thinking that was written after the fact (salvage), never judged.
    """

    role: Role
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    rationalised: bool = False

    def to_openai(self) -> dict[str, Any]:
        """The message as an OpenAI chat dictionary; absent fields are left out.

        `content` is always present for system, user and tool messages.
        """
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain.pop("rationalised", None)
        if self.content is None and self.role == "assistant":
            plain["content"] = None
        return plain


Tool = dict[str, Any]
"""A tool in nested OpenAI form: {"type": "function", "function": {name, ..., parameters}}."""
