"""Rows of an export stand in JSON lines and in Parquet, and the two hold the same."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from palio.corpus.rows import BATCH_BYTES, SCHEMA
from palio.records import to_json

_MESSAGES = SCHEMA.field("messages").type
_SHARED = tuple(
    (name, pa.string())
    for name in ("tools", "trajectory_id", "problem_id", "agent", "model", "kind")
)
CHAT = pa.schema([("messages", _MESSAGES), *_SHARED])
KTO = pa.schema([("prompt", _MESSAGES), ("completion", _MESSAGES), ("label", pa.bool_()), *_SHARED])
STEPS = pa.schema(
    [
        ("prompt", _MESSAGES),
        ("teacher", pa.string()),
        ("teacher_calls", pa.string()),
        ("step", pa.int64()),
        *_SHARED,
    ]
)


class SplitWriter:
    """Writes `<split>.jsonl`, and `<split>.parquet` where the rows have a schema.

    One row group is held in memory.
    """

    def __init__(self, folder: Path, split: str, schema: pa.Schema | None) -> None:
        self.rows = 0
        self._lines = (folder / f"{split}.jsonl").open("wb")
        self._schema = schema
        self._table = (
            pq.ParquetWriter(folder / f"{split}.parquet", schema, compression="zstd")
            if schema is not None
            else None
        )
        self._batch: list[bytes] = []
        self._size = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        line = to_json(row) + b"\n"
        self._lines.write(line)
        self.rows += 1
        if self._table is not None:
            self._batch.append(line)
            self._size += len(line)
            if self._size >= BATCH_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._table is not None and self._batch:
            lines = b"".join(self._batch)
            options = pyarrow.json.ReadOptions(block_size=len(lines) + 1, use_threads=False)
            parse = pyarrow.json.ParseOptions(
                explicit_schema=self._schema, unexpected_field_behavior="error"
            )
            self._table.write_table(
                pyarrow.json.read_json(io.BytesIO(lines), read_options=options, parse_options=parse)
            )
        self._batch, self._size = [], 0

    def close(self) -> None:
        """Write what is left and close both files."""
        self._flush()
        self._lines.close()
        if self._table is not None:
            self._table.close()
