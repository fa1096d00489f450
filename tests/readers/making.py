"""Small traces of each format, and how to read what one file of them gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palio.corpus.readers.importing import Found, TraceImport
from palio.records import Trajectory

QUERY = "Find a blue mug under 20 PHP."


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def imported(path: Path, data: bytes, **options: Any) -> tuple[list[Found], TraceImport]:
    path.write_bytes(data)
    reader = TraceImport([path], **options)
    found = list(reader)
    return found, reader


def read(path: Path, *rows: Any) -> list[Found]:
    found, reader = imported(path / "t.jsonl", lines(*rows))
    assert not reader.rejects, reader.rejects
    return found


def calls(trajectory: Trajectory) -> list[tuple[str, Any]]:
    """(tool, arguments) of every call in the messages, in order."""
    return [
        (call.function.name, json.loads(call.function.arguments))
        for message in trajectory.messages
        for call in message.tool_calls
    ]


def codes(found: Found) -> list[str]:
    return [loss.code for loss in found.losses]


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": QUERY}], **more}


def step(number: int, *made: dict[str, Any], at: int = 0, **message: Any) -> dict[str, Any]:
    """One dialogue step as an arena agent writes it; `made` are its calls with results."""
    asked = [{"name": call["name"], "parameters": call["parameters"]} for call in made]
    content = f"<tool_call>{json.dumps(asked)}</tool_call>" if made else ""
    said = {**message, **({"tool_call": list(made)} if made else {})}
    return {
        "completion": {"reasoning_content": "", "content": content, "message": said},
        "extra_info": {"step": number, "query": QUERY, "timestamp": at or number * 1000},
    }


def made(name: str, parameters: Any, result: Any = "ok", call_id: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "parameters": parameters,
        "tool_call_id": call_id or f"id-{name}",
        "result": result,
    }


def asked(at: int, *wanted: tuple[str, Any], **response: Any) -> dict[str, Any]:
    """A logged completion that asks for calls."""
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(wanted)
        ],
    }
    if not wanted:
        message = {"role": "assistant", "content": "3 of 5, relevant"}
    return {
        "kind": "summary",
        "method": "POST",
        "path": "/inference/chat/completions",
        "timestamp": at,
        "duration_ms": 100,
        "status_code": 200,
        "json_data": {"model": "m"},
        "response": {"choices": [{"message": message}], "usage": {"completion_tokens": 40}},
        **response,
    }


def searched(at: int, params: Any, ids: tuple[str, ...] = ("1",), **more: Any) -> dict[str, Any]:
    """A logged search whose result was too long for the log."""
    return {
        "kind": "summary",
        "method": "GET",
        "path": "/search/find_product",
        "timestamp": at,
        "duration_ms": 10,
        "status_code": 200,
        "params": params,
        "response_truncated": True,
        "response_length": 4000,
        "result_product_ids": list(ids),
        **more,
    }
