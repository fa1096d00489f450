"""Rows whose fate at the row gates an earlier build decided enter a new build without being judged.

They come from the published files of that build alone: kept rows from the pools and their lineage,
dropped ones from the rejects. A kept row comes back without the host's events, which a corpus does
not hold; everything that the later steps and the files need is in its messages and its lineage.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec
import zstandard
from msgspec.structs import replace

from palio.corpus.config import POOLS
from palio.corpus.funnel import FunnelStep, read_funnel
from palio.corpus.gates import Drop, Gate
from palio.corpus.lineage import Lineage, read_lineage
from palio.corpus.rows import CorpusRow, read_rows
from palio.corpus.salvage.mark import salvaged_from
from palio.corpus.spool import REJECTS, RejectRow
from palio.records import InputError, IntegrityError, Record, Trajectory, from_json, to_json
from palio.rollout.verdicts import Judged

READ, KNOWN = "read", "known"
"""The steps that decode a line, and that refer a row to its problem."""
SELECTION = ("guard", "duplicates", "cap")
"""The steps that compare rows or problems: what they decided is decided again upon a change."""


class Settled(NamedTuple):
    """One row of an earlier build.

    Attributes:
        step: the row step that rejected it, "" for a row that passed them all.
        drop: why, None for a row that passed.
        ids: trajectory, problem and agent, all "" for a line that could not be read.
        body: JSON of the judged trajectory, b"null" where the rejects hold none.
        source: where the trajectory came from; "file:<name>" for a line that could not be read,
            "" when unknown.
        kept: whether it is in a pool of that build.
    """

    step: str
    drop: Drop | None
    ids: tuple[str, str, str]
    body: bytes
    source: str = ""
    kept: bool = False


class Earlier(NamedTuple):
    """What a new build takes over.

    Attributes:
        rows: in any order.
        total: digest of all trajectories that came in, which new ones are added to; None when
            it is not known, as after a take-down, and the manifest then names none.
        refuse: gate for new rows, before all others; what it refuses is kept without its body.
        files: name -> bytes of files that go into the new corpus as they are.
        before: steps that rows had gone through before they came to a build at all, as those of
            shards have.
    """

    rows: Iterable[Settled]
    total: str | None = ""
    refuse: Gate | None = None
    files: Mapping[str, bytes] = {}
    before: tuple[FunnelStep, ...] = ()

    def funnel(self, steps: Sequence[FunnelStep]) -> tuple[FunnelStep, ...]:
        """All steps: what came beside the rows that went through those before came past them."""
        if not self.before:
            return tuple(steps)
        past = steps[0].taken - self.before[-1].kept
        led = (replace(s, taken=s.taken + past, kept=s.kept + past) for s in self.before)
        return (*led, *steps)


def steps_before(folder: Path) -> tuple[FunnelStep, ...]:
    """The steps of a corpus that came before a build's own first step; none for most.

    Raises:
        InputError: the folder has no funnel.
    """
    steps = read_funnel(folder).steps
    return tuple(takewhile(lambda step: step.name not in (READ, KNOWN), steps))


def settled_rows(folder: Path) -> Iterator[Settled]:
    """Every row of a corpus: the kept ones in order of id, then the rejects in file order.

    Raises:
        InputError: a file is missing or wrong, or a row that a comparison dropped has no body.
        IntegrityError: rows and lineage do not match.
    """
    for row, lineage in kept_rows(folder):
        body = to_json(restored(row, lineage))
        ids = (row.trajectory_id, row.problem_id, row.agent)
        yield Settled("", None, ids, body, lineage.source, kept=True)
    for reject in read_rejects(folder):
        yield _settled(reject, folder)


def kept_rows(folder: Path) -> Iterator[tuple[CorpusRow, Lineage]]:
    """The published rows with their lineage, in order of trajectory id, in constant memory.

    Raises:
        IntegrityError: a row has no lineage, or a lineage no row.
    """
    pools = {pool: read_rows(folder / f"{pool}.jsonl") for pool in POOLS}
    for lineage in read_lineage(folder):
        row = next(pools[lineage.pool], None) if lineage.pool in pools else None
        if row is None or row.trajectory_id != lineage.trajectory_id:
            raise IntegrityError(
                f"provenance and rows of {lineage.pool} part at {lineage.trajectory_id}",
                where=str(folder),
                remedy="the files are not those of one build; build the corpus again",
            )
        yield row, lineage
    for pool, rest in pools.items():
        if (row := next(rest, None)) is not None:
            raise IntegrityError(
                f"row {row.trajectory_id} of {pool} has no provenance", where=str(folder)
            )


def restored(row: CorpusRow, lineage: Lineage) -> Judged:
    """The judged trajectory of a published row, without its events."""
    messages = row.typed()
    if salvaged_from(
        lineage.source
    ):  # the mark is in no published row, and all thinking has it there
        messages = tuple(
            msgspec.structs.replace(message, rationalised=bool(message.reasoning_content))
            for message in messages
        )
    trajectory = Trajectory(
        trajectory_id=row.trajectory_id,
        problem_id=row.problem_id,
        query=next((m.content or "" for m in messages if m.role == "user"), ""),
        kind=row.kind,
        agent=lineage.agent,
        events=(),
        messages=messages,
        tools=row.offered,
        suite_id=lineage.suite_id,
        catalogue=lineage.catalogue,
        catalogue_digest=lineage.catalogue_digest,
        seed=lineage.seed,
        attempt=lineage.attempt,
        source=lineage.source,
        tool_version=lineage.tool_version,
    )
    return Judged(trajectory=trajectory, verdicts=lineage.verdicts)


def read_rejects(folder: Path) -> Iterator[RejectRow]:
    """Stream the rejects of a corpus folder.

    Raises:
        InputError: there are none, or a row is wrong.
    """
    path = folder / REJECTS
    if not path.is_file():
        raise InputError("no rejects here", where=str(path), remedy="name a corpus folder")
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file)
        for number, line in enumerate(io.BufferedReader(reader, 1 << 20), start=1):
            yield from_json(line, RejectRow, where=f"{path}:{number}")


class _Origin(Record, frozen=True):
    source: str = "rollout"


class _Source(Record, frozen=True):
    trajectory: _Origin


def _settled(reject: RejectRow, folder: Path) -> Settled:
    held = reject.judged
    body = b"null" if isinstance(held, msgspec.UnsetType) else bytes(held)
    source = f"file:{Path(reject.detail.partition(':')[0]).name}" if reject.step == READ else ""
    if body != b"null":
        source = msgspec.json.decode(body, type=_Source).trajectory.source
    ids = (reject.trajectory_id, reject.problem_id, reject.agent)
    if reject.step in SELECTION:
        if body == b"null":
            raise InputError(
                f"the rejects hold no body of {reject.trajectory_id}, which may be needed again",
                where=str(folder),
                remedy="build with keep_bodies = true, or build anew from all trajectories",
            )
        return Settled("", None, ids, body, source)
    drop = Drop(reason=reject.reason, detail=reject.detail)
    return Settled(reject.step, drop, ids, body, source)
