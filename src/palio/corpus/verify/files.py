"""The files of a corpus folder, read with suspicion: whatever is wrong becomes a finding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from palio.corpus.verify.shapes import Finding, Manifest, RawRow, Row, Stated, Task, Turn

POOLS = ("train", "development", "heldout")
NEVER = "never-touch"
CERTIFICATE, MANIFEST = "certificate.json", "manifest.json"
PROBLEMS, PLACES = "problems.jsonl", "pools.json"
HIDDEN, WEIGHTS, LINEAGE = "never-touch.json", "weights.json", "provenance.jsonl"

T = TypeVar("T")


class Folder:
    """A corpus folder; `findings` grows while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.digested = 0

    def complain(self, rule: str, what: str, *rows: str) -> None:
        """Add a finding that is no leak between two problems."""
        self.findings.append(Finding(rule=rule, what=what, rows=rows))

    def document(self, name: str, kind: type[T]) -> T | None:
        """A JSON file, None with a finding when it is missing or wrong."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.complain("file", f"{name} cannot be read: {error}")
            return None

    def lines(self, name: str, kind: type[T]) -> Iterator[tuple[str, T]]:
        """Place and record of each line of a JSON lines file; a bad line is a finding."""
        decode = msgspec.json.Decoder(kind).decode
        try:
            with (self.path / name).open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    place = f"{name}:{number}"
                    try:
                        yield place, decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                        self.complain("file", f"a line cannot be read: {error}", place)
        except OSError as error:
            self.complain("file", f"{name} cannot be read: {error.strerror}")

    def check_digests(self, stated: Stated | None) -> Manifest | None:
        """Every file has the digest that manifest and certificate state, and no file is extra."""
        manifest = self.document(MANIFEST, Manifest)
        named = [(MANIFEST, manifest.outputs if manifest else {})]
        named += [(CERTIFICATE, stated.files if stated else {})]
        own: dict[str, str] = {}
        for source, files in named:
            for name, digest in sorted(files.items()):
                if name not in own:
                    own[name] = self._digest(name)
                if own[name] != digest:
                    was = "is missing" if not own[name] else "is not the file that was written"
                    self.complain("file", f"{name} {was}: {source} states another digest")
        self.digested = len(own)
        if manifest is not None:
            for name in (*(f"{p}.{end}" for p in POOLS for end in ("jsonl", "parquet")), PROBLEMS):
                if name not in manifest.outputs:
                    self.complain("file", f"{MANIFEST} does not name {name}")
        return manifest

    def _digest(self, name: str) -> str:
        path = self.path / name
        if Path(name).name != name or not path.is_file():
            return ""
        with path.open("rb") as stream:
            return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()

    def tasks(self) -> dict[str, Task]:
        """The published problems by id."""
        found: dict[str, Task] = {}
        for place, task in self.lines(PROBLEMS, Task):
            if task.problem_id in found:
                self.complain("problem", f"{task.problem_id!r} occurs twice", place)
            found[task.problem_id] = task
        return found

    def rows(self) -> list[Row]:
        """The rows of all pools; JSON lines and Parquet must hold the same."""
        found = []
        for pool in POOLS:
            rows = []
            for place, raw in self.lines(f"{pool}.jsonl", RawRow):
                try:
                    rows.append(_row(raw, pool, place))
                except (msgspec.MsgspecError, RecursionError) as error:
                    self.complain("file", f"messages cannot be read: {error}", place)
            self._compare(pool, rows)
            found += rows
        return found

    def _compare(self, pool: str, rows: list[Row]) -> None:
        name = f"{pool}.parquet"
        try:
            stored = _parquet_rows(self.path / name)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            self.complain("parquet", f"{name} cannot be read: {error}")
            return
        told = [(row.trajectory_id, row.problem_id, row.cluster_id, row.query) for row in rows]
        if len(stored) != len(told):
            self.complain("parquet", f"{name} holds {len(stored)} rows, {pool}.jsonl {len(told)}")
        for number, (one, other) in enumerate(zip(stored, told, strict=False), start=1):
            if one != other:
                row = rows[number - 1]
                self.complain("parquet", f"row {number} of {name} is another one", row.place)
                return


def _row(raw: RawRow, pool: str, place: str) -> Row:
    turns = msgspec.json.decode(raw.messages, type=tuple[Turn, ...])
    query = next((turn.content or "" for turn in turns if turn.role == "user"), "")
    return Row(
        trajectory_id=raw.trajectory_id,
        problem_id=raw.problem_id,
        cluster_id=raw.cluster_id,
        pool=pool,
        place=place,
        query=query,
        told=hashlib.sha256(raw.messages).hexdigest(),
    )


def _parquet_rows(path: Path) -> list[tuple[str, str, str, str]]:
    """Ids and the first user text of each row."""
    columns = ["trajectory_id", "problem_id", "cluster_id"]
    nested = ["messages.list.element.role", "messages.list.element.content"]
    with pq.ParquetFile(path) as stored:
        table: Any = stored.read(columns=[*columns, *nested], use_threads=False)
    rows = []
    for plain in table.to_pylist():
        said = (m["content"] or "" for m in plain["messages"] if m["role"] == "user")
        rows.append((*(plain[name] for name in columns), next(said, "")))
    return rows


def canonical_digest(value: Any) -> str:
    """SHA-256 of JSON with sorted keys and no white space."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
