"""What changed from one corpus to another: every row by id, and why it came or went.

Reads the published files alone. Per row 100 bytes are in memory: a pool, two digests, a source.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from palio.corpus.build import read_pools
from palio.corpus.earlier import kept_rows, read_rejects
from palio.corpus.funnel import read_funnel
from palio.corpus.origin import origin
from palio.corpus.takedown import Named, read_notices
from palio.records import Record, to_json
from palio.records.base import current_schema
from palio.world.artefacts import MANIFEST, file_digest, read_manifest

Kind = Literal["added", "removed", "moved", "changed"]
KINDS: tuple[Kind, ...] = ("added", "removed", "moved", "changed")


class Change(Record, frozen=True, omit_defaults=False):
    """One row that differs; a row that moved and changed gives two.

    Attributes:
        kind: "added" and "removed" speak of pools: the row may be among the other's rejects.
        reason: added: "new", or "was <reason>" where the older corpus had rejected it; removed: the
            reason of the newer one's rejects, "taken_down", or "absent"; moved: "<pool> to <pool>";
            changed: what differs of messages, tools, verdicts, cluster.
        pool: in the newer corpus, in the older one for a removed row.
        source: of its lineage.
    """

    kind: Kind
    trajectory_id: str
    problem_id: str
    agent: str
    pool: str
    source: str
    reason: str


class Tally(Record, frozen=True, omit_defaults=False):
    """Changes of one kind, counted; each mapping in falling order of count."""

    rows: int
    sources: dict[str, int]
    reasons: dict[str, int]
    agents: dict[str, int]


class Side(Record, frozen=True, omit_defaults=False):
    """One of the two corpora: its name, the digest of its manifest, its rows."""

    name: str
    manifest: str
    rows: int


class Difference(Record, frozen=True, omit_defaults=False):
    """From an older corpus to a newer one.

    Attributes:
        same: rows that are equal in both.
        tallies: kind -> counts, in the order of `KINDS`.
        changes: every change, by kind and then by trajectory id.
        problems: "added", "removed", "moved" -> problem ids of the split.
        config: key -> (older, newer) value where the configurations differ.
        rejected: reason -> (older, newer) count where the funnels differ.
    """

    older: Side
    newer: Side
    same: int
    tallies: dict[Kind, Tally]
    changes: tuple[Change, ...]
    problems: dict[str, tuple[str, ...]]
    config: dict[str, tuple[Any, Any]]
    rejected: dict[str, tuple[int, int]]
    schema_version: str = msgspec.field(default_factory=current_schema)

    @property
    def empty(self) -> bool:
        """Whether the two hold the same rows in the same pools."""
        return not self.changes


class _Row(NamedTuple):
    problem_id: str
    agent: str
    pool: str
    source: str
    parts: dict[str, bytes]


def difference(older: Path, newer: Path) -> Difference:
    """Compare two corpus folders.

    Raises:
        InputError: a folder is no corpus, or a file of it is wrong.
        IntegrityError: rows and lineage of a folder do not match.
    """
    before, after = _rows(older), _rows(newer)
    changes = [*_added(before, after, older), *_removed(before, after, newer)]
    same = 0
    for name in sorted(before.keys() & after.keys()):
        found = list(_changed(name, before[name], after[name]))
        same += not found
        changes += found
    changes.sort(key=lambda c: (KINDS.index(c.kind), c.trajectory_id))
    return Difference(
        older=_side(older, len(before)),
        newer=_side(newer, len(after)),
        same=same,
        tallies={kind: _tally(c for c in changes if c.kind == kind) for kind in KINDS},
        changes=tuple(changes),
        problems=_problems(read_pools(older), read_pools(newer)),
        config=_pairs(_config(older), _config(newer), None),
        rejected=_pairs(_rejected(older), _rejected(newer), 0),
    )


def _rows(folder: Path) -> dict[str, _Row]:
    return {
        row.trajectory_id: _Row(
            row.problem_id,
            row.agent,
            lineage.pool,
            lineage.source,
            {
                "messages": _mark(row.messages),
                "tools": _mark(row.tools),
                "verdicts": _mark(lineage.verdicts),
                "cluster": row.cluster_id.encode(),
            },
        )
        for row, lineage in kept_rows(folder)
    }


def _mark(value: Any) -> bytes:
    return hashlib.blake2b(to_json(value), digest_size=12).digest()


def _change(kind: Kind, name: str, row: _Row, reason: str) -> Change:
    return Change(
        kind=kind,
        trajectory_id=name,
        problem_id=row.problem_id,
        agent=row.agent,
        pool=row.pool,
        source=row.source,
        reason=reason,
    )


def _added(before: Mapping[str, _Row], after: Mapping[str, _Row], older: Path) -> Iterator[Change]:
    fresh = after.keys() - before.keys()
    reasons = _reject_reasons(older, fresh)
    for name in fresh:
        reason = f"was {reasons[name]}" if name in reasons else "new"
        yield _change("added", name, after[name], reason)


def _removed(
    before: Mapping[str, _Row], after: Mapping[str, _Row], newer: Path
) -> Iterator[Change]:
    gone = before.keys() - after.keys()
    reasons = _reject_reasons(newer, gone)
    named = Named(read_notices(newer))
    for name in gone:
        row = before[name]
        reason = reasons.get(name) or (
            "taken_down" if named.by((name, row.problem_id, row.agent), row.source) else "absent"
        )
        yield _change("removed", name, row, reason)


def _changed(name: str, one: _Row, other: _Row) -> Iterator[Change]:
    if one.pool != other.pool:
        yield _change("moved", name, other, f"{one.pool} to {other.pool}")
    if differing := [part for part in one.parts if one.parts[part] != other.parts[part]]:
        yield _change("changed", name, other, " and ".join(differing))


def _reject_reasons(folder: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Why a corpus rejected the wanted rows; of several rejects of one id, the last step's."""
    names = set(wanted)
    if not names:
        return {}
    rejects = read_rejects(folder)
    return {r.trajectory_id: r.reason for r in rejects if r.trajectory_id in names}


def _tally(changes: Iterable[Change]) -> Tally:
    held = list(changes)
    return Tally(
        rows=len(held),
        sources=_counted(origin(change.source) for change in held),
        reasons=_counted(change.reason for change in held),
        agents=_counted(change.agent for change in held),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _side(folder: Path, rows: int) -> Side:
    return Side(name=folder.name, manifest=file_digest(folder / MANIFEST), rows=rows)


def _problems(older: Mapping[str, str], newer: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    both = older.keys() & newer.keys()
    return {
        "added": tuple(sorted(newer.keys() - older.keys())),
        "removed": tuple(sorted(older.keys() - newer.keys())),
        "moved": tuple(sorted(name for name in both if older[name] != newer[name])),
    }


def _config(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder / MANIFEST)
    return manifest.config if manifest else {}


def _rejected(folder: Path) -> dict[str, int]:
    counts = read_funnel(folder).counts()
    return {name.partition(":")[2]: n for name, n in counts.items() if name.startswith("rejected:")}


def _pairs(
    older: Mapping[str, Any], newer: Mapping[str, Any], missing: Any
) -> dict[str, tuple[Any, Any]]:
    pairs = {
        key: (older.get(key, missing), newer.get(key, missing))
        for key in sorted(older.keys() | newer.keys())
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
