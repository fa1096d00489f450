"""OpenAI chat rows (formats 5 and 6) become trajectories.

A row has `messages`, or a `prompt` and a `completion`, or a request and the model server's answer;
it may have nested or flat tools, as a list or as JSON text, and the model's raw next turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.items import has_items, messages_of_items
from palio.corpus.readers.links import is_cyclic
from palio.corpus.readers.losses import Imported, LossList, UnreadableError

_ROW_KEYS = frozenset(
    (
        *("messages", "tools", "functions", "id", "trajectory_id", "problem_id", "query", "kind"),
        *("agent", "model", "raw_text", "cluster_id"),
    )
)


def is_chat_row(row: Any) -> bool:
    """Whether a decoded row has the shape that `read_chat` reads."""
    return isinstance(row, dict) and isinstance(_messages(row), list)


def _messages(row: Mapping[str, Any]) -> Any:
    """The messages of a row; text is JSON, as data sets hold lists that no column type fits."""
    given = row.get("messages")
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            return msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError):
            return None
    return given


def is_pair_row(row: Any) -> bool:
    """Whether a row is a prompt and its completion, as preference and prompt data sets have it."""
    return isinstance(row, dict) and all(
        isinstance(row.get(key), list | str) and row[key] for key in ("prompt", "completion")
    )


def is_exchange(row: Any) -> bool:
    """Whether a row is the answer of a chat completions server, alone or with its request."""
    if not isinstance(row, dict):
        return False
    answer = row["response"] if isinstance(row.get("response"), dict) else row
    choices = answer.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and isinstance(choices[0], dict)
        and isinstance(choices[0].get("message"), dict)
    )


def read_chat(row: Mapping[str, Any], source: str, losses: LossList | None = None) -> Imported:
    """Read one row.

    Args:
        row: a JSON object with `messages`.
        source: format and file, for the trajectory's provenance.
        losses: what was lost before this reader.

    Raises:
        UnreadableError: the messages are empty or one of them is no message.
    """
    conversation = Conversation(losses)
    given = _messages(row)
    if not given:
        raise UnreadableError("empty", "the row has no messages")
    if has_items(given):
        given = messages_of_items(given, conversation.losses, "messages")
    if is_cyclic(given):
        conversation.losses.add("cyclic_reference", "messages")
    for index, raw in enumerate(given):
        conversation.add(raw, f"messages[{index}]")
    if isinstance(row.get("raw_text"), str):
        conversation.add({"role": "assistant", "content": row["raw_text"]}, "raw_text")
    conversation.losses.unknown(row, _ROW_KEYS)
    return imported(
        conversation,
        source,
        fallback=row,
        tools=read_tools(row.get("tools") or row.get("functions"), conversation.losses),
        trajectory_id=str(row.get("trajectory_id") or row.get("id") or ""),
        problem_id=str(row.get("problem_id") or ""),
        query=str(row.get("query") or ""),
        kind=str(row.get("kind") or ""),
        agent=external_agent(row.get("agent"), row.get("model")),
    )


def read_pair(row: Mapping[str, Any], source: str) -> Imported:
    """Read a row whose conversation is `prompt` and then `completion`, as lists or as texts."""
    losses = LossList()
    rest = {key: value for key, value in row.items() if key not in ("prompt", "completion")}
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    return read_chat({**rest, "messages": [*prompt, *completion]}, source, losses)


def read_exchange(row: Mapping[str, Any], source: str) -> Imported:
    """Read a chat completion, after the messages of its request where the row has them."""
    losses = LossList()
    answer = row
    asked: Mapping[str, Any] = {}
    if isinstance(row.get("response"), dict):
        answer = row["response"]
        asked = row["request"] if isinstance(row.get("request"), dict) else {}
        losses.unknown(row, ("request", "response"))
    given = asked.get("messages")
    before = given if isinstance(given, list) else []
    if not before:
        losses.add("absent_request", "")
    losses.unknown(asked, ("messages", "tools", "model"), "request")
    losses.unknown(answer, ("choices", "id", "model", "object", "created"), "response")
    for index in range(1, len(answer["choices"])):
        losses.add("further_choice", f"choices[{index}]")
    said = {"role": "assistant", **answer["choices"][0]["message"]}
    body = {
        "messages": [*before, said],
        "tools": asked.get("tools"),
        "model": answer.get("model") or asked.get("model"),
        "id": answer.get("id"),
    }
    return read_chat(body, source, losses)
