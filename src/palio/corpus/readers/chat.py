"""OpenAI chat rows (formats 5 and 6) become trajectories; calls and results are paired by id.

Read: nested or flat tools, as a list or as a JSON string; arguments as a string, an object or a
string in a string; content as text, null or a list of parts; `reasoning` and `reasoning_content`;
`function_call`; think and call tags in the text, tool responses in user messages; and rows with a
prefix of messages and the model's raw next turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palio.broker.emission import read_emission
from palio.corpus.conversation import RECOMMEND, calls_of, ids_in
from palio.corpus.readers.losses import Imported, Loss, UnreadableError
from palio.corpus.readers.pairing import CallIds
from palio.corpus.readers.record import events_of
from palio.records import (
    AgentRef,
    Ending,
    FunctionCall,
    Message,
    Role,
    Tool,
    ToolCall,
    Trajectory,
    digest,
)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MESSAGE_KEYS = frozenset(
    (
        *("role", "content", "reasoning_content", "reasoning", "tool_calls", "function_call"),
        *("tool_call_id", "name", "refusal", "annotations", "audio", "weight"),
    )
)
_ROW_KEYS = frozenset(
    (
        *("messages", "tools", "id", "trajectory_id", "problem_id", "query", "kind", "agent"),
        *("model", "raw_text", "cluster_id"),
    )
)
_RESPONSE, _RESPONSE_END = "<tool_response>", "</tool_response>"


def is_chat_row(row: Any) -> bool:
    """Whether a decoded row has the shape that `read_chat` reads."""
    return isinstance(row, dict) and isinstance(row.get("messages"), list)


def read_chat(row: Mapping[str, Any], source: str) -> Imported:
    """Read one row.

    Args:
        row: a JSON object with `messages`.
        source: reader and file, for the trajectory's provenance.

    Raises:
        UnreadableError: the messages are empty or one of them is no message.
    """
    reader = _Reader()
    given = row["messages"]
    if not given:
        raise UnreadableError("empty", "the row has no messages")
    for index, raw in enumerate(given):
        reader.add(raw, f"messages[{index}]")
    if isinstance(row.get("raw_text"), str):
        reader.add({"role": "assistant", "content": row["raw_text"]}, "raw_text")
    tools = reader.tools(row.get("tools"))
    reader.note_unknown(row, _ROW_KEYS, "")
    messages = tuple(reader.messages)
    query = row.get("query") or next((m.content for m in messages if m.role == "user"), "") or ""
    ended = any(call.name == "terminate" for call in calls_of(messages))
    agent = row.get("agent") if isinstance(row.get("agent"), str) else ""
    trajectory = Trajectory(
        trajectory_id=str(row.get("trajectory_id") or row.get("id") or digest(row)[7:39]),
        problem_id=str(row.get("problem_id") or ""),
        query=str(query),
        kind=str(row.get("kind") or ""),
        agent=AgentRef(
            name=agent or "external", kind="external", model=str(row.get("model") or "")
        ),
        events=events_of(messages),
        messages=messages,
        tools=tools,
        answer=_answer(messages),
        ending=Ending.terminated if ended else Ending.returned,
        isolation="unknown",
        eligible=False,
        source=source,
    )
    return Imported(trajectory, tuple(reader.losses))


def _answer(messages: Sequence[Message]) -> Any:
    named = [ids_in(call.arguments) for call in calls_of(messages) if call.name == RECOMMEND]
    return ",".join(named[-1]) if named else None


class _Reader:
    """Messages read so far, and what was lost on the way."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.losses: list[Loss] = []
        self._ids = CallIds()

    def lose(self, code: str, where: str) -> None:
        self.losses.append(Loss(code=code, where=where))

    def note_unknown(self, row: Mapping[str, Any], known: frozenset[str], where: str) -> None:
        for key in row:
            if key not in known:
                self.lose("unknown_key", f"{where}.{key}" if where else key)

    def add(self, raw: Any, where: str) -> None:
        """Append one message, or the several that a user message with tool responses is."""
        if not isinstance(raw, Mapping) or raw.get("role") not in _ROLES:
            raise UnreadableError("message", f"{where} is no chat message")
        self.note_unknown(raw, _MESSAGE_KEYS, where)
        role = _ROLES[raw["role"]]
        content = self._content(raw.get("content"), where)
        if role == "assistant":
            self._assistant(raw, content, where)
        elif role == "tool":
            self._result(content, raw.get("tool_call_id"), where)
        elif role == "user" and content and content.lstrip().startswith(_RESPONSE):
            self._tagged_results(content, where)
        else:
            self.messages.append(Message(role=role, content=content or ""))

    def _content(self, content: Any, where: str) -> str | None:
        """Text of a content: None and "" stay apart, parts are joined."""
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            self.lose("content_type", where)
            return msgspec.json.encode(content).decode()
        parts = []
        for index, part in enumerate(content):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append(part["text"])
            else:
                self.lose("content_part", f"{where}.content[{index}]")
        return "".join(parts)

    def _assistant(self, raw: Mapping[str, Any], content: str | None, where: str) -> None:
        thinking = raw.get("reasoning_content", raw.get("reasoning"))
        if raw.get("reasoning_content") and raw.get("reasoning") not in (None, thinking):
            self.lose("second_reasoning", where)
        if thinking is not None and not isinstance(thinking, str):
            self.lose("reasoning_type", where)
            thinking = None
        plain = Message(
            role="assistant",
            content=content,
            reasoning_content=thinking,
            tool_calls=tuple(self._structured(raw, where)),
        )
        taken = read_emission(plain)
        calls = [
            ToolCall(
                id=call_id,
                function=FunctionCall(
                    name=call.function.name, arguments=self._unwrapped(call.function, where)
                ),
            )
            for call, call_id in zip(
                taken.calls, self._ids.open([call.id for call in taken.calls]), strict=True
            )
        ]
        for call, given in zip(calls, taken.calls, strict=True):
            if given.id and call.id != given.id:
                self.lose("duplicate_call_id", where)
        text = taken.content
        if calls and text == "" and content:
            text = None  # nothing was left beside the tags
        self.messages.append(
            Message(
                role="assistant",
                content=text,
                reasoning_content=taken.thinking,
                tool_calls=tuple(calls),
            )
        )

    def _structured(self, raw: Mapping[str, Any], where: str) -> list[ToolCall]:
        given = raw.get("tool_calls") or []
        if raw.get("function_call"):
            given = [*given, {"function": raw["function_call"]}]
        calls = []
        for index, call in enumerate(given if isinstance(given, list) else []):
            function = call.get("function", call) if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                self.lose("call_shape", f"{where}.tool_calls[{index}]")
                continue
            arguments = function.get("arguments", function.get("parameters"))
            if not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments or {}).decode()
            named = FunctionCall(name=function["name"], arguments=arguments)
            calls.append(ToolCall(id=str(call.get("id") or ""), function=named))
        return calls

    def _unwrapped(self, function: FunctionCall, where: str) -> str:
        """Arguments that were encoded twice, decoded once; everything else as it is."""
        if not function.arguments.lstrip().startswith('"'):
            return function.arguments
        try:
            inner = msgspec.json.decode(function.arguments, type=str)
            msgspec.json.decode(inner, type=dict[str, Any])
        except msgspec.DecodeError:
            return function.arguments
        self.lose("double_encoded", where)
        return inner

    def _result(self, content: str | None, call_id: Any, where: str) -> None:
        paired, by_position = self._ids.answer(str(call_id) if call_id else "")
        if by_position:
            self.lose("paired_by_position", where)
        self.messages.append(Message(role="tool", content=content or "", tool_call_id=paired))

    def _tagged_results(self, content: str, where: str) -> None:
        for block in content.split(_RESPONSE)[1:]:
            text, end, _ = block.partition(_RESPONSE_END)
            if not end:
                self.lose("unclosed_response", where)
            paired, _ = self._ids.answer("")
            self.messages.append(
                Message(role="tool", content=text.strip("\n"), tool_call_id=paired)
            )

    def tools(self, given: Any) -> tuple[Tool, ...]:
        """Tools in nested form; a string is JSON, a flat schema is nested."""
        if isinstance(given, str):
            try:
                given = msgspec.json.decode(given)
            except msgspec.DecodeError:
                self.lose("tools", "tools")
                return ()
        found: list[Tool] = []
        for index, tool in enumerate(given if isinstance(given, list) else []):
            if not isinstance(tool, Mapping):
                self.lose("tools", f"tools[{index}]")
            elif isinstance(tool.get("function"), Mapping):
                found.append(dict(tool))
            else:
                flat = {key: value for key, value in tool.items() if key != "type"}
                found.append({"type": "function", "function": flat})
        return tuple(found)
