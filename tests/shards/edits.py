"""Changes to a chat row, of every kind that readers and gates look at."""

from __future__ import annotations

import json
from typing import Any


def at(*path: Any, value: Any) -> Any:
    """An edit that sets what stands at a path."""
    return lambda row: _set(row, path, value)


def without(*path: Any) -> Any:
    """An edit that removes what stands at a path."""
    return lambda row: _delete(row, path)


def edits() -> list[Any]:
    """One change each, of every kind that readers and gates look at."""
    contents: tuple[Any, ...] = (
        None,
        "",
        " ",
        "None",
        "text",
        5,
        ["a", {"text": "b"}],
        "<think>x</think>y",
    )
    contents = (*contents, "<tool_call>{}</tool_call>", "a <b> c", "</think>z", "nul \0", "\ud800")
    contents = (
        *contents,
        "<tool_response>r</tool_response>",
        " <tool_response>",
        "<|im_end|>",
        "a<|eot_id|>",
        "b <|x|>\n",
    )
    made: list[Any] = [
        at("messages", place, "content", value=v) for place in (0, 1, 2) for v in contents
    ]
    made += [without("messages", place, "content") for place in (0, 1, 2)]
    made += [
        at("messages", 1, "reasoning_content", value=v) for v in (None, "", " ", "<obs>", "\0", 3)
    ]
    made += [at("messages", place, "role", value=r) for place in (0, 1, 2) for r in ROLES]
    made += [at("messages", p, "name", value=v) for p in (0, 1, 2) for v in ("", "n", None, "\0")]
    made += [
        at("messages", p, "tool_call_id", value=v) for p in (0, 1, 2) for v in ("c0", "x", None)
    ]
    made += [at("messages", p, "rationalised", value=v) for p in (0, 1) for v in (True, False)]
    made += [at("messages", 0, "tool_calls", value=v) for v in EMPTY[:2]]
    made += [at("messages", 1, "tool_calls", value=v) for v in EMPTY]
    return made + _call_edits() + _more_edits()


def _call_edits() -> list[Any]:
    call = ("messages", 1, "tool_calls", 0)
    made: list[Any] = []
    made += [at(*call, "id", value=v) for v in ("", None, "c1", "z", 5, "\0")]
    made += [at(*call, "type", value=v) for v in (None, "custom")] + [without(*call, "type")]
    made += [
        at(*call, "function", "name", value=v) for v in ("nobody", "recommend_product", "", "\0")
    ]
    arguments = (
        "{}",
        "[]",
        "",
        "{",
        ' {"q": 1} ',
        '"{}"',
        ' "{\\"q\\": 1}"',
        "null",
        {"q": 1},
        '{"q":"\0"}',
    )
    made += [at(*call, "function", "arguments", value=v) for v in arguments]
    ids = ("1", "1000,1000", " 1000", "", 1000, ["1000"], "1000,55", None)
    made += [
        at(
            "messages",
            5,
            "tool_calls",
            0,
            "function",
            "arguments",
            value=json.dumps({"product_ids": v}),
        )
        for v in ids
    ]
    return made


def _more_edits() -> list[Any]:
    made: list[Any] = [at(key, value=v) for key in ROW_KEYS for v in ("", None, "v", 5, "\0")]
    made += [at("messages", value=v) for v in (*EMPTY, [1])]
    made += [lambda row, n=n: _set(row, ("messages",), row["messages"][:n]) for n in range(1, 9)]
    made += [lambda row: row["messages"].insert(3, {"role": "user", "content": "more"})]
    made += [lambda row: row["messages"].insert(2, {"role": "user", "content": "between"})]
    made += [lambda row: row["messages"].insert(0, {"role": "system", "content": "be good"})]
    made += [lambda row: row["messages"].append({"role": "system", "content": "late"})]
    made += [lambda row: row["messages"].append({"role": "assistant", "content": "bye"})]
    made += [lambda row: row["messages"].append({"role": "assistant", "content": " "})]
    made += [lambda row: row["messages"].append({"role": "assistant"})]
    made += [lambda row: row["messages"][1]["tool_calls"].append(_second())]
    made += [_parallel(order) for order in ((0, 1), (1, 0), (0,), (1,), (0, 0), ())]
    return made


EMPTY: tuple[Any, ...] = ([], None, {}, "[]")
ROLES = ("user", "assistant", "tool", "system", "human", "developer", "nobody", None)
ROW_KEYS = (
    *("id", "trajectory_id", "problem_id", "query", "kind", "agent", "model", "cluster_id"),
    *("raw_text", "functions", "events", "steps", "dialogue", "status", "response", "unknown"),
)


def _second() -> dict[str, Any]:
    function = {"name": "view_product_information", "arguments": '{"product_ids": "9"}'}
    return {"id": "second", "type": "function", "function": function}


def _parallel(order: tuple[int, ...]) -> Any:
    def edit(row: dict[str, Any]) -> None:
        row["messages"][1]["tool_calls"].append(_second())
        replies = [row["messages"][2], {"role": "tool", "tool_call_id": "second", "content": "s"}]
        row["messages"][2:3] = [replies[place] for place in order]

    return edit


def _set(row: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        row = row[key]
    row[path[-1]] = value


def _delete(row: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        row = row[key]
    row.pop(path[-1], None)
