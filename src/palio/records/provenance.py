"""What an artefact is made of: schema, tool, configuration and input digests, counts."""

from __future__ import annotations

from typing import Any

import msgspec

from palio.records.base import Record, current_schema


class Provenance(Record, frozen=True):
    """Stands in, or beside, every file that palio writes.

    Attributes:
        kind: what the artefact is, e.g. "catalogue", "suite", "corpus", "checkpoint".
        config: the full configuration that produced it, echoed.
        config_digest: digest of `config`.
        inputs: name -> digest of each input.
        outputs: file name -> digest of each file written.
        counts: row counts, e.g. {"in": 10, "kept": 8, "rejected:grounding": 2}.
    """

    kind: str
    tool_version: str
    config_digest: str = ""
    config: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    counts: dict[str, int] = {}
    seed: int | None = None
    schema_version: str = msgspec.field(default_factory=current_schema)


class Reject(Record, frozen=True):
    """One row that a reader or a pipeline step did not keep: where it was, and why.

    Attributes:
        file: path as the user gave it.
        line: 1-based line or row number, 0 when unknown.
        reason: short machine code, e.g. "json", "type", "duplicate_id".
        detail: one sentence for people.
    """

    file: str
    line: int
    reason: str
    detail: str
