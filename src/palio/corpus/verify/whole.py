"""Nothing stands in the folder that nobody named, and all that states a count states the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from palio.corpus.verify.files import MANIFEST, POOLS, Folder, canonical_digest
from palio.corpus.verify.shapes import Manifest, Row, Stated, Task
from palio.corpus.verify.texts import folded

FUNNEL, NOTICES = "funnel.json", "takedowns.json"
RULES = frozenset(("problem", "product", "spec", "text", "row", "conversation", "cluster"))
"""Rules that every certificate states how much was compared under."""
SAID_OF_IT = frozenset((MANIFEST, "README.md", "stats.json", "report.html", "funnel.png"))
"""Files that are made of a finished corpus, which its manifest cannot name."""
DATA = (".jsonl", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".txt", ".gz", ".zst", ".npz")
"""Endings that a loader of data sets may take for rows."""


class Pool(msgspec.Struct, frozen=True):
    """Rows that the funnel counted in a pool."""

    rows: int


class Funnel(msgspec.Struct, frozen=True):
    """What the funnel says came out."""

    pools: dict[str, Pool] = {}


class Notice(msgspec.Struct, frozen=True):
    """What was taken down."""

    trajectories: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def check_whole(
    folder: Folder, stated: Stated, manifest: Manifest | None, rows: Sequence[Row]
) -> None:
    """Files, configuration, counts and take-downs fit together."""
    if manifest is not None:
        _check_files(folder, manifest, stated)
        if manifest.config_digest != canonical_digest(manifest.config):
            folder.complain("manifest", "its configuration is not the one that was digested")
        fractions = manifest.config.get("fractions")
        if fractions is not None and not set(fractions) <= {*POOLS, "never-touch"}:
            folder.complain("manifest", f"its configuration has pools {sorted(fractions)}")
    if missing := RULES - stated.compared.keys():
        what = f"it does not say that {', '.join(sorted(missing))} were compared"
        folder.complain("certificate", what)
    held = Counter(row.pool for row in rows)
    funnel = folder.document(FUNNEL, Funnel)
    for pool in POOLS:
        told = {FUNNEL: funnel.pools[pool].rows if funnel and pool in funnel.pools else 0}
        if manifest is not None:
            told[MANIFEST] = manifest.counts.get(f"rows:{pool}", 0)
        for name, count in told.items():
            if count != held[pool]:
                what = f"{name} counts {count} rows of {pool}, the file has {held[pool]}"
                folder.complain("count", what)
    _check_notices(folder, rows)


def _check_files(folder: Folder, manifest: Manifest, stated: Stated) -> None:
    for path in sorted(folder.path.rglob("*")):
        name = path.relative_to(folder.path).as_posix()
        unnamed = path.is_file() and name not in manifest.outputs and name not in SAID_OF_IT
        if unnamed and path.name.lower().endswith(DATA):
            folder.complain("file", f"{name} is in the folder and {MANIFEST} does not name it")
        if path.is_symlink():
            folder.complain("file", f"{name} is a link: what it shows may change")
    for name in sorted(_pool_files() - stated.files.keys()):
        folder.complain("file", f"the certificate does not name {name}")


def _pool_files() -> set[str]:
    return {f"{pool}.{ending}" for pool in POOLS for ending in ("jsonl", "parquet")}


def _check_notices(folder: Folder, rows: Iterable[Row]) -> None:
    """Nothing that was taken down is there again."""
    if not (folder.path / NOTICES).is_file():
        return
    notices = folder.document(NOTICES, tuple[Notice, ...]) or ()
    gone = {name for each in notices for name in (*each.trajectories, *each.removed)}
    problems = {name for each in notices for name in each.problems}
    for row in rows:
        if row.trajectory_id in gone or row.problem_id in problems:
            folder.complain("takedown", f"{row.trajectory_id} was taken down", row.place)


def check_said(folder: Folder, tasks: dict[str, Task], rows: Sequence[Row]) -> None:
    """No row holds, beside its own request, the request of a problem of another pool.

    System messages and further user messages are looked at; what tools and the model said is not.
    """
    pools: dict[str, set[str]] = {}
    for row in rows:
        pools.setdefault(row.problem_id, set()).add(row.pool)
    places: dict[str, dict[str, str]] = {}
    for row in rows:
        for text in row.beside:
            places.setdefault(text, {}).setdefault(row.pool, row.place)
    requests = {name: folded(tasks[name].query) for name in pools if name in tasks}
    for text, where in places.items():
        said = folded(text)
        for name, request in requests.items():
            if len(request) < SHORT or request not in said:
                continue
            for pool, place in where.items():
                if pools[name] - {pool}:
                    what = f"a message of a row of {pool} holds the request of {name!r}"
                    folder.complain("query", what, place)


SHORT = 20
"""Characters below which a request may stand in another text by chance."""

__all__ = ["check_said", "check_whole"]
