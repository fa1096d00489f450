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

from palio.corpus.verify.shapes import Finding, Manifest, RawRow, Row, Stated, Task

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
        """Every column of the Parquet file holds what the JSON lines hold, row by row."""
        name = f"{pool}.parquet"
        try:
            stored = _parquet_digests(self.path / name)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            self.complain("parquet", f"{name} cannot be read: {error}")
            return
        if len(stored) != len(rows):
            self.complain("parquet", f"{name} holds {len(stored)} rows, {pool}.jsonl {len(rows)}")
        for number, (one, row) in enumerate(zip(stored, rows, strict=False), start=1):
            if one != row.whole:
                self.complain("parquet", f"row {number} of {name} is another one", row.place)
                return


def _row(raw: RawRow, pool: str, place: str) -> Row:
    said = [m for m in raw.messages if m.get("role") in ("user", "system")]
    asked = next((m for m in said if m["role"] == "user"), None)
    return Row(
        trajectory_id=raw.trajectory_id,
        problem_id=raw.problem_id,
        cluster_id=raw.cluster_id,
        pool=pool,
        place=place,
        query=str(asked.get("content") or "") if asked else "",
        told=_digest_of(raw.messages),
        whole=_digest_of(msgspec.structs.asdict(raw)),
        beside=tuple(str(m["content"]) for m in said if m is not asked and m.get("content")),
    )


def _parquet_digests(path: Path) -> list[str]:
    """Digest of every column of each row."""
    found = []
    with pq.ParquetFile(path) as stored:
        columns = set(stored.schema_arrow.names)
        if columns != set(COLUMNS):
            raise KeyError(f"its columns are {sorted(columns)}")
        for batch in stored.iter_batches(batch_size=256, use_threads=False):
            found += [_digest_of(row) for row in batch.to_pylist()]
    return found


def _digest_of(value: Any) -> str:
    """Digest of JSON data without its nulls and empty lists, which columns cannot tell apart."""
    return hashlib.sha256(_sorted(_filled(value))).hexdigest()


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(held) for key, held in value.items() if held not in (None, [], ())}
    if isinstance(value, list | tuple):
        return [_filled(held) for held in value]
    return value


_sorted = msgspec.json.Encoder(order="sorted").encode
COLUMNS = tuple(field.name for field in msgspec.structs.fields(RawRow))


def canonical_digest(value: Any) -> str:
    """SHA-256 of JSON with sorted keys and no white space."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
