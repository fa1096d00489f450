"""The same shard as others would write it: datatrove, and json with pydantic.

The gates are those of palio in its order, over dictionaries. A chat row's calls are the model's by
construction, so the axis is whether a catalogue tool was called and answered.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from palio.corpus.rows import SCHEMA
from palio.world.arguments import CATALOGUE_TOOLS

BUDGET, BATCH = 20_000, 300
_TAGS = re.compile(r"</?(?:think|tool_call|tool_response|response|obs)>|<\|im_(?:start|end)\|>")


def reason(row: dict[str, Any]) -> str:
    """Why a row goes, "" when it stays."""
    messages = row["messages"]
    asked = [call for message in messages for call in message.get("tool_calls") or ()]
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    names = [call["function"]["name"] for call in asked]
    if any(call["id"] not in results for call in asked if call["function"]["name"] != "terminate"):
        return "orphan_call"
    if results.keys() - {call["id"] for call in asked}:
        return "orphan_result"
    if names.count("recommend_product") != 1:
        return "recommend"
    try:
        arguments = [json.loads(call["function"]["arguments"]) for call in asked]
    except ValueError:
        return "bad_arguments"
    at = names.index("recommend_product")
    wanted = [one.strip() for one in str(arguments[at].get("product_ids", "")).split(",")]
    if not any(wanted):
        return "unresolved_product"
    size = len(json.dumps(messages, ensure_ascii=False).encode()) + len(json.dumps(row["tools"]))
    if size > BUDGET:
        return "over_budget"
    if not set(names) & set(CATALOGUE_TOOLS):
        return "axis"
    before = [(call["function"]["arguments"], results[call["id"]]) for call in asked[:at]]
    for one in wanted:
        if not any(f'"product_id":"{one}"' in told and one not in own for own, told in before):
            return "ungrounded"
    return malformed(messages, {tool["function"]["name"] for tool in row["tools"]}, names)


def malformed(messages: list[dict[str, Any]], offered: set[str], names: list[str]) -> str:
    """The gate on format."""
    if messages[0]["role"] != "user":
        return "role_order"
    turns = [message for message in messages if message["role"] == "assistant"]
    for message in turns:
        text = f"{message.get('content') or ''}\n{message.get('reasoning_content') or ''}"
        if _TAGS.search(text) or not (message.get("tool_calls") or message.get("content")):
            return "format"
    if sum(bool(message.get("reasoning_content")) for message in turns) < len(turns) / 2:
        return "no_thinking"
    return "" if offered.issuperset(names) else "unknown_tool"


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of a corpus row."""
    return {
        "messages": row["messages"],
        "tools": json.dumps(row["tools"]),
        "trajectory_id": row["id"],
        "problem_id": row["problem_id"],
        "cluster_id": "",
        "agent": "external",
        "kind": "",
    }


def pydantic_shard(path: Path, out: Path) -> Path | None:
    """Lines, `json.loads`, models, gates, `Table.from_pylist`."""
    try:
        from pydantic import BaseModel
    except ImportError:
        return None

    class Function(BaseModel):
        name: str
        arguments: str

    class Call(BaseModel):
        id: str
        type: str = "function"
        function: Function

    class Message(BaseModel):
        role: str
        content: str | None = None
        reasoning_content: str | None = None
        tool_calls: list[Call] | None = None
        tool_call_id: str | None = None
        name: str | None = None

    class Row(BaseModel):
        id: str
        problem_id: str
        messages: list[Message]
        tools: list[dict[str, Any]]

    out.mkdir()
    batch: list[dict[str, Any]] = []
    with (
        zstandard.open(path, "rt", encoding="utf-8") as lines,
        zstandard.open(out / "rejects.jsonl.zst", "wt", encoding="utf-8") as rejects,
        pq.ParquetWriter(
            out / "rows.parquet", SCHEMA, compression="zstd", compression_level=3
        ) as table,
    ):
        for line in lines:
            row = Row.model_validate(json.loads(line)).model_dump()
            if why := reason(row):
                rejects.write(json.dumps({"id": row["id"], "reason": why}) + "\n")
                continue
            batch.append(columns(row))
            if len(batch) == BATCH:
                table.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
                batch = []
        table.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
    return out / "rows.parquet"


def datatrove_shard(path: Path, out: Path) -> Path | None:
    """JsonlReader, LambdaFilter, ParquetWriter; None without datatrove.

    The filter returns the reason, which the exclusion writer keeps. Content-defined chunks and the
    page index are off, since ours writes none.
    """
    try:
        from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-untyped]
        from datatrove.pipeline.filters import LambdaFilter  # type: ignore[import-untyped]
        from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-untyped]
        from datatrove.pipeline.writers import JsonlWriter, ParquetWriter  # type: ignore[import-untyped]
    except ImportError:
        return None
    from loguru import logger

    logger.disable("datatrove")

    def read(_: Any, data: dict[str, Any], __: str, ___: int | str) -> dict[str, Any]:
        return {"text": data["messages"][0]["content"], "id": data["id"], "metadata": {"row": data}}

    def keep(document: Any) -> Any:
        why = reason(document.metadata["row"])
        return (False, why) if why else True

    def row(_: Any, document: Any) -> dict[str, Any]:
        return columns(document.metadata["row"])

    def reject(_: Any, document: Any) -> dict[str, Any]:
        return {"id": document.id, "reason": document.metadata.get("filter_reason", "")}

    dropped = JsonlWriter(str(out / "rejects"), compression="zstd", adapter=reject)
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(path.parent), compression="zstd", adapter=read, glob_pattern=path.name),
            LambdaFilter(keep, dropped),
            ParquetWriter(
                str(out / "rows"),
                compression="zstd",
                adapter=row,
                schema=SCHEMA,
                batch_size=BATCH,
                use_content_defined_chunking=False,
                write_page_index=False,
            ),
        ],
        logging_dir=str(out / "logs"),
    ).run()
    return next((out / "rows").glob("*.parquet"))
