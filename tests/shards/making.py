"""Chat rows and shard files for tests."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard

from palio.corpus.config import CorpusConfig
from palio.corpus.shards import ShardConfig

LENIENT = ShardConfig(corpus=CorpusConfig(token_budget=20_000))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("find_product", "view_product_information", "recommend_product", "terminate")
]
WORDS = ("blue", "red", "wool", "café", "mug", "lamp", "5\u00a0kg", "naïve", "<b>", "\n")


def chat_row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row that passes every gate; `changes` replace its members."""
    rng = random.Random(number)
    product = str(1000 + number)
    found = json.dumps([{"product_id": product, "title": rng.choice(WORDS), "price": 5}])
    script = (
        ("find_product", {"q": f"{rng.choice(WORDS)} {number}"}, found),
        ("view_product_information", {"product_ids": product}, found),
        ("recommend_product", {"product_ids": product}, "{}"),
        ("terminate", {"status": "success"}, '{"status":"success"}'),
    )
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"I want {rng.choice(WORDS)}"}]
    for place, (tool, arguments, result) in enumerate(script):
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"id": f"c{place}", "type": "function", "function": function}
        thinking = " ".join(rng.choices(WORDS[:8], k=6))
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": thinking,
                "tool_calls": [call],
            }
        )
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    row = {"id": f"t{number}", "problem_id": f"p{number % 7}", "messages": messages}
    return {**row, "tools": TOOLS, **changes}


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """JSON lines, packed when the name ends in .zst; a row that is bytes is written as it is."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    data = b"".join(line + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(data, 3) if path.name.endswith(".zst") else data)
    return path


def mixed_rows(count: int, start: int = 0) -> list[Any]:
    """Rows of which some are dropped, some are unreadable, and some are of another format."""
    rows: list[Any] = []
    for number in range(start, start + count):
        row = chat_row(number)
        if number % 5 == 1:
            row["messages"].append({"role": "tool", "tool_call_id": "nobody", "content": "?"})
        elif number % 5 == 2:
            row["messages"][1]["tool_calls"][0]["function"]["arguments"] = "{"
        elif number % 5 == 3:
            rows.append(b"not json")
            row = {"conversations": [{"from": "human", "value": f"hi {number}"}]}
        rows.append(row)
    return rows
