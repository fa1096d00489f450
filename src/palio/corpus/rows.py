"""A corpus row has one shape: JSON lines and Parquet hold the same messages, and no null is added.

Columns: `messages` (OpenAI form; arguments are JSON strings), `tools` (a JSON string of the nested
schemas: as nested columns every schema would get every other schema's parameters as nulls), and
the ids `trajectory_id`, `problem_id`, `cluster_id`, `agent`, `kind`. Everything else about a row
stands in the provenance file under the same `trajectory_id`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from palio.records import InputError, Message, Record, Tool, Trajectory, from_json, to_json

_FUNCTION = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_CALL = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", _FUNCTION)])
_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning_content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("messages", pa.list_(_MESSAGE)),
        ("tools", pa.string()),
        ("trajectory_id", pa.string()),
        ("problem_id", pa.string()),
        ("cluster_id", pa.string()),
        ("agent", pa.string()),
        ("kind", pa.string()),
    ]
)
"""Explicit, so that no column is inferred from the first rows and none is lost."""

BATCH_BYTES = 8 << 20
"""JSON bytes a Parquet row group: about 1,000 traces of 8 KB."""


class CorpusRow(Record, frozen=True, omit_defaults=False):
    """One row as trainers read it."""

    messages: tuple[dict[str, Any], ...]
    tools: str
    trajectory_id: str
    problem_id: str
    cluster_id: str
    agent: str
    kind: str

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools as nested OpenAI schemas."""
        return from_json(self.tools, tuple[Tool, ...], where=self.trajectory_id)

    def typed(self) -> tuple[Message, ...]:
        """The messages as records.

        Raises:
            InputError: one is none; names the trajectory.
        """
        try:
            return msgspec.convert(self.messages, tuple[Message, ...])
        except msgspec.ValidationError as error:
            raise InputError(
                f"messages are not as OpenAI has them: {error}", where=self.trajectory_id
            ) from error


def row_of(trajectory: Trajectory, cluster_id: str) -> CorpusRow:
    """The row that a trajectory becomes."""
    return CorpusRow(
        messages=tuple(_plain(message) for message in trajectory.messages),
        tools=to_json(trajectory.tools).decode(),
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        cluster_id=cluster_id,
        agent=trajectory.agent.name,
        kind=trajectory.kind,
    )


def _plain(message: Message) -> dict[str, Any]:
    """The OpenAI form with lists, as JSON and Parquet give it back."""
    plain = message.to_openai()
    if "tool_calls" in plain:
        plain["tool_calls"] = list(plain["tool_calls"])
    return plain


class RowWriter:
    """Writes `<pool>.jsonl` and `<pool>.parquet` side by side, one row group in memory."""

    def __init__(self, folder: Path, pool: str) -> None:
        self._lines = (folder / f"{pool}.jsonl").open("wb")
        self._table = pq.ParquetWriter(
            folder / f"{pool}.parquet", SCHEMA, compression="zstd", compression_level=3
        )
        self._batch: list[bytes] = []
        self._size = 0

    def write(self, row: CorpusRow) -> None:
        """Append one row."""
        line = to_json(row) + b"\n"
        self._lines.write(line)
        self._batch.append(line)
        self._size += len(line)
        if self._size >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            self._table.write_table(table_of(b"".join(self._batch)))
        self._batch, self._size = [], 0

    def close(self) -> None:
        """Write what is left and close both files."""
        self._flush()
        self._lines.close()
        self._table.close()


def table_of(lines: bytes) -> pa.Table:
    """JSON lines of rows as an Arrow table of `SCHEMA`.

    Arrow's own JSON reader makes the table from the very bytes of the JSONL file, so the two
    files cannot differ: 400 MB/s, where `Table.from_pylist` reaches 30 MB/s.
    """
    options = pyarrow.json.ReadOptions(block_size=len(lines) + 1, use_threads=False)
    parse = pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="error")
    return pyarrow.json.read_json(io.BytesIO(lines), read_options=options, parse_options=parse)


def read_rows(path: Path) -> Iterator[CorpusRow]:
    """Stream the rows of a `.jsonl` or `.parquet` file of a corpus.

    Raises:
        InputError: the file is missing or compressed, or a row has another shape; names file and
            row.
    """
    if not path.is_file():
        raise InputError(
            "no such corpus file", where=str(path), remedy="run `palio corpus build` first"
        )
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                _check_plain(line, path)
            yield from_json(line, CorpusRow, where=f"{path}:{number}")


def _check_plain(line: bytes, path: Path) -> None:
    """Say of the first bytes of a file what the error of a JSON parser would not."""
    for start, what, remedy in _NOT_PLAIN:
        if line.startswith(start):
            raise InputError(
                f"{what}, and a corpus is plain JSON lines", where=str(path), remedy=remedy
            )


_NOT_PLAIN = (
    (b"\x1f\x8b", "is compressed with gzip", "unpack it first: gunzip"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "unpack it first: unzstd"),
    (b"PAR1", "is a Parquet file", "call it .parquet"),
    (b"\xef\xbb\xbf", "begins with a byte order mark", "write it in UTF-8 without one"),
)


def _parquet_rows(path: Path) -> Iterator[CorpusRow]:
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            if file.schema_arrow.names != SCHEMA.names:
                raise InputError(f"has columns {file.schema_arrow.names}", where=str(path))
            for batch in file.iter_batches(batch_size=256):
                for plain in batch.to_pylist():
                    row += 1
                    yield _parquet_row(plain)
    except (pa.ArrowException, msgspec.ValidationError, TypeError) as error:
        raise InputError(
            f"no readable corpus file: {error}",
            where=f"{path}:{row}" if row else str(path),
            remedy="copy or build it again",
        ) from error


def _parquet_row(plain: dict[str, Any]) -> CorpusRow:
    plain["messages"] = [_without_nulls(message) for message in plain["messages"]]
    return msgspec.convert(plain, CorpusRow)


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """A message as it was before columns: only an assistant's content may be null."""
    kept = {key: value for key, value in message.items() if value is not None}
    if message["role"] == "assistant" and "content" not in kept:
        kept["content"] = None
    return kept
