"""Texts that a chat template rendered, as trainers dump them (format 8), become trajectories.

A dump of verl has `input` and `output`, with the template's marks (ChatML, Llama 3) or, where the
trainer decoded without special tokens, with bare role names on lines of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from palio.corpus.readers.assembly import external_agent, imported
from palio.corpus.readers.calls import read_tools
from palio.corpus.readers.conversation import Conversation
from palio.corpus.readers.losses import Imported, LossList
from palio.records import Tool

_MARKED = (
    re.compile(r"<\|im_start\|>(?P<role>\w+)\n"),
    re.compile(r"<\|start_header_id\|>(?P<role>\w+)<\|end_header_id\|>\n+"),
)
_BARE = re.compile(r"(?m)^(?P<role>system|user|assistant|tool)\n")
_ENDS = re.compile(r"<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text|begin_of_text|python_tag)\|>")
_TOOLS = re.compile(r"(?:^|\n+)# Tools\s.*?<tools>(?P<tools>.*?)</tools>.*\Z", re.DOTALL)
_DROPPED = ("score", "step", "gts", "reward", "acc", "ground_truth")
_KEYS = frozenset((*_DROPPED, "input", "output", "id", "uid", "problem_id", "query", "model"))


def is_dump(row: Any) -> bool:
    """Whether a row is a prompt and a response of a trainer, both texts (or messages and text)."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("output"), str)
        and (isinstance(row.get("input"), str) or _is_chat(row.get("input")))
    )


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(m, dict) and "role" in m for m in value)


def read_dump(row: Mapping[str, Any], source: str) -> Imported:
    """Read one row; the output goes on where the input stops."""
    conversation = Conversation()
    losses = conversation.losses
    tools: tuple[Tool, ...] = ()
    if isinstance(row["input"], str):
        messages, tools = messages_of_text(row["input"], row["output"], losses)
    else:
        rest, _ = messages_of_text("", row["output"], losses)
        messages = [*row["input"], *(rest or [])]
    for index, raw in enumerate(messages):
        conversation.add(raw, f"turn[{index}]")
    losses.dropped(row, _DROPPED)
    losses.unknown(row, _KEYS)
    return imported(
        conversation,
        source,
        fallback=row,
        tools=tools,
        trajectory_id=str(row.get("id") or row.get("uid") or ""),
        problem_id=str(row.get("problem_id") or ""),
        query=str(row.get("query") or ""),
        agent=external_agent(model=row.get("model")),
    )


def messages_of_text(
    prompt: str, response: str, losses: LossList
) -> tuple[list[dict[str, Any]], tuple[Tool, ...]]:
    """Chat messages and tools of a rendered conversation.

    Args:
        prompt: rendered up to where the model goes on; text without any mark is a user's.
        response: what the model wrote, further turns included.
        losses: takes what was changed.
    """
    mark = next((m for m in _MARKED if m.search(prompt) or m.search(response)), None)
    if mark is None and _BARE.search(prompt):
        mark = _BARE
        losses.add("roles_guessed", "input")
    if mark is None:
        asked = [{"role": "user", "content": prompt}] if prompt else []
        return [*asked, {"role": "assistant", "content": _ENDS.sub("", response)}], ()
    text = prompt + response
    if not mark.search(prompt):
        text = f"{prompt}<|im_start|>assistant\n{response}" if mark is _MARKED[0] else text
    found = list(mark.finditer(text))
    if text[: found[0].start()].strip() and _ENDS.sub("", text[: found[0].start()]).strip():
        losses.add("text_before_turns", "input")
    ends = [*(m.start() for m in found[1:]), len(text)]
    messages: list[dict[str, Any]] = []
    tools: tuple[Tool, ...] = ()
    for place, end in zip(found, ends, strict=True):
        role, body = place["role"], _ENDS.sub("", text[place.end() : end]).rstrip("\n")
        if role == "assistant" and not body.strip() and end == len(text):
            continue  # the generation prompt, and nothing generated
        if role == "system":
            body, tools = _without_tools(body, tools, losses)
            if not body and tools:
                continue
        messages.append({"role": role, "content": body})
    return messages, tools


def _without_tools(
    body: str, tools: tuple[Tool, ...], losses: LossList
) -> tuple[str, tuple[Tool, ...]]:
    """A system prompt without the section into which Qwen's template writes the tools."""
    section = _TOOLS.search(body)
    if section is None:
        return body, tools
    lines = [line for line in section["tools"].splitlines() if line.strip()]
    try:
        schemas = [msgspec.json.decode(line) for line in lines]
    except (msgspec.DecodeError, RecursionError):
        losses.add("tools", "system")
        return body, tools
    losses.add("tools_from_prompt", "system")
    return body[: section.start()], read_tools(schemas, losses)
