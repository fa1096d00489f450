"""Labels are read once and checked: a row has one of five values and says what it is about."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import zstandard

from palio.records import (
    InputError,
    IntegrityError,
    Record,
    Trajectory,
    bytes_digest,
    canonical_json,
    from_json,
)
from palio.records.verdict import QUALITY_BINS


class LabelledRow(Record, frozen=True):
    """One trajectory and the value that the decision tree gives it, as a person reads it.

    Attributes:
        label: one of `QUALITY_BINS`; its place there is the number of gates that are passed
            before the first one that fails.
        trajectory: what was read; a row without it needs `trajectory_id`, and can be compared
            with stored verdicts only.
        row_id: unique in the file; the trajectory's id where it is left out.
        rationale: why, in one sentence.
        population: where the row comes from; accuracy is reported for each.
        script: what rows of one origin share (a template, a model): they are one cluster in
            intervals and stay on one side of a split.
        pair: the minimal pair that the row is a member of.
        split: "development" rows may be looked at while a judge is improved.
        channel: where the thinking stands: "reasoning", "tags" or "content".
    """

    label: float
    trajectory: Trajectory | None = None
    trajectory_id: str = ""
    row_id: str = ""
    rationale: str = ""
    population: str = "all"
    script: str = ""
    pair: str = ""
    split: str = ""
    language: str = ""
    channel: str = ""
    author: str = ""

    @property
    def subject(self) -> str:
        """The id of the trajectory that the label is about."""
        return self.trajectory.trajectory_id if self.trajectory else self.trajectory_id

    @property
    def bin(self) -> int:
        """Place of the label in `QUALITY_BINS`: gates passed, 0 to 4."""
        return QUALITY_BINS.index(self.label)

    @property
    def gates(self) -> tuple[bool, ...]:
        """Answers of the gates that the tree asks: passes, then the first failure if any."""
        return (True,) * self.bin + ((False,) if self.bin < 4 else ())

    @property
    def cluster(self) -> str:
        """What the row depends on: its script, else its pair, else itself."""
        return self.script or self.pair or self.row_id or self.subject


def read_labels(path: Path) -> tuple[LabelledRow, ...]:
    """Rows of a ``.jsonl`` or ``.jsonl.zst`` file.

    Raises:
        InputError: no such file; a line is no row, has a label outside `QUALITY_BINS`, names no
            trajectory, or repeats a row id; names file and line.
    """
    if not path.is_file():
        raise InputError("there is no such file", where=str(path))
    return tuple(_checked(_lines(path.read_bytes(), path), path))


def shipped_labels() -> tuple[LabelledRow, ...]:
    """The labelled set that comes with palio; see its README."""
    file = resources.files("palio.judging").joinpath("labelled", "set.jsonl.zst")
    with resources.as_file(file) as path:
        return read_labels(path)


def labels_digest(rows: Iterable[LabelledRow]) -> str:
    """Digest over the rows in order; equal sets have equal digests."""
    return bytes_digest(b"\n".join(canonical_json(row) for row in rows))


def _lines(data: bytes, path: Path) -> list[bytes]:
    if path.name.endswith(".zst"):
        try:
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
        except zstandard.ZstdError as error:
            raise IntegrityError(
                f"the compressed file is damaged: {error}", where=str(path)
            ) from error
    return data.split(b"\n")


def _checked(lines: list[bytes], path: Path) -> Iterator[LabelledRow]:
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = from_json(line, LabelledRow, where=where)
        if row.label not in QUALITY_BINS:
            raise InputError(
                f"label {row.label:g} is none of {', '.join(f'{b:g}' for b in QUALITY_BINS)}",
                where=where,
            )
        if not row.subject:
            raise InputError("the row has neither trajectory nor trajectory_id", where=where)
        name = row.row_id or row.subject
        if name in seen:
            raise InputError(f"row {name!r} occurs twice", where=where)
        seen.add(name)
        yield row
