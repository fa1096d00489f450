"""ShareGPT conversations (format 8) become trajectories: from/value turns, tool calls as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import ROLES, Conversation
from palio.corpus.readers.losses import Imported, LossList, UnreadableError

_LISTS = ("conversations", "conversation")
_KEYS = frozenset((*_LISTS, "system", "tools", "id", "problem_id", "query", "kind", "model"))
_FROM = {
    **ROLES,
    **dict.fromkeys(("chatgpt", "bing", "bard", "bot"), "assistant"),
    **dict.fromkeys(("function_response", "function-response", "tool_result"), "tool"),
}
_CALLING = ("function_call", "function-call", "tool_call")


def is_sharegpt(row: Any) -> bool:
    """Whether a row holds a list of from/value turns, or chat messages under that list's name."""
    return isinstance(row, dict) and any(
        isinstance(row.get(key), list) and any(_is_turn(turn) for turn in row[key])
        for key in _LISTS
    )


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, dict) and ("from" in turn or "role" in turn)


def read_sharegpt(row: Mapping[str, Any], source: str) -> Imported:
    """Read one row.

    Raises:
        UnreadableError: a turn has no known speaker.
    """
    conversation = Conversation()
    losses = conversation.losses
    key = next(name for name in _LISTS if isinstance(row.get(name), list))
    if isinstance(row.get("system"), str) and row["system"]:
        conversation.add({"role": "system", "content": row["system"]}, "system")
    pending: dict[str, Any] | None = None
    for index, turn in enumerate(row[key]):
        where = f"{key}[{index}]"
        raw = _message(turn, where, losses)
        if pending is not None and "calling" in raw:
            pending["content"] += raw["content"]  # parallel calls, a turn each
            continue
        if pending is not None:
            conversation.add(_spoken(pending), f"{key}[{index - 1}]")
        pending = raw if "calling" in raw else None
        if pending is None:
            conversation.add(raw, where)
    if pending is not None:
        conversation.add(_spoken(pending), f"{key}[{len(row[key]) - 1}]")
    losses.unknown(row, _KEYS)
    return imported(
        conversation,
        source,
        fallback=row,
        tools=read_tools(row.get("tools"), losses),
        trajectory_id=str(row.get("id") or ""),
        problem_id=str(row.get("problem_id") or ""),
        query=str(row.get("query") or ""),
        kind=str(row.get("kind") or ""),
        agent=external_agent(model=row.get("model")),
    )


def _spoken(pending: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": pending["content"]}


def _message(turn: Any, where: str, losses: LossList) -> dict[str, Any]:
    """The chat message of a turn; one that is only a call is marked `calling`."""
    if not isinstance(turn, dict):
        raise UnreadableError("message", f"{where} is no turn")
    if "from" not in turn:
        return dict(turn)
    speaker = str(turn["from"]).lower()
    said = {"content": turn["value"]} if "value" in turn else {}
    losses.unknown(turn, ("from", "value", "weight", "loss", "name", "tool_call_id"), where)
    if speaker in _CALLING:
        value = turn.get("value")
        text = value if isinstance(value, str) else ""
        thinking, end, call = text.rpartition("</think>")
        tagged = call if "<tool_call>" in call else f"<tool_call>\n{call.strip()}\n</tool_call>"
        return {"calling": True, "content": f"{thinking}{end}{tagged}"}
    role = _FROM.get(speaker)
    if role is None:
        raise UnreadableError("message", f"{where} is from {speaker[:40]!r}, whom nobody knows")
    kept = {key: turn[key] for key in ("name", "tool_call_id") if key in turn}
    return {"role": role, **said, **kept}
