"""A corpus folder is good when its files, its pools and its certificate agree in everything."""

from __future__ import annotations

from pathlib import Path

import msgspec

from palio.corpus.verify import certificate, rules
from palio.corpus.verify.evidence import Evidence, weights_of
from palio.corpus.verify.files import HIDDEN, LINEAGE, NEVER, PLACES, POOLS, WEIGHTS, Folder
from palio.corpus.verify.shapes import Finding, Row, Stated, Task, Verification
from palio.corpus.verify.split import check_split
from palio.corpus.verify.texts import folded
from palio.corpus.verify.whole import check_said, check_whole


def verify(path: Path, previous: Path | None = None) -> Verification:
    """Check a corpus folder; the result names everything that is wrong with it.

    Never raises for what a file holds: a file that cannot be read is a finding. 27,000 rows of
    13 KB take about 10 s.

    Args:
        path: folder of a finished `palio corpus build`.
        previous: the corpus that pools were kept from; itself only asked for its pools.
    """
    folder = Folder(path)
    stated = folder.document("certificate.json", Stated)
    manifest = folder.check_digests(stated)
    if stated is None:
        return Verification(findings=tuple(folder.findings), checked={"file": folder.digested})
    certificate.check_rules(folder, stated, manifest)
    tasks = folder.tasks()
    pool_of = folder.document(PLACES, dict[str, str]) or {}
    rows = folder.rows()
    _check_places(folder, tasks, pool_of)
    _check_lineage(folder, rows)
    check_whole(folder, stated, manifest, rows)
    check_said(folder, tasks, rows)
    weights, own = _weights(folder, tasks, pool_of, stated)
    pools = {name: {pool} for name, pool in pool_of.items() if name in tasks}
    strays = _strays(folder, tasks, rows, pools)
    evidence = Evidence(stated, {**tasks, **strays}, pools, rows, weights)
    unchecked = _apply(folder, evidence, pool_of, own and not strays, _earlier(folder, previous))
    evidence.checked["file"] = folder.digested
    return Verification(
        findings=_sorted(folder.findings + evidence.findings),
        checked=dict(sorted(evidence.checked.items())),
        notes=_notes(stated, own),
        unchecked=unchecked,
    )


def _earlier(folder: Folder, previous: Path | None) -> dict[str, str] | None:
    """The pools of the corpus that pools were kept from, where it is given."""
    if previous is None:
        return None
    other = Folder(previous)
    pools = other.document(PLACES, dict[str, str])
    folder.findings += other.findings
    return pools


def _apply(
    folder: Folder,
    evidence: Evidence,
    pool_of: dict[str, str],
    own: bool,
    earlier: dict[str, str] | None,
) -> tuple[str, ...]:
    """All rules, then what the certificate states; gives what could not be checked."""
    rules.check_rows(evidence)
    rules.check_exact(evidence)
    strong, weak = rules.strong_and_weak(evidence)
    rules.check_lexical(evidence, strong, weak)
    runs = rules.check_runs(evidence)
    rules.check_embedding(evidence)
    clusters = rules.find_clusters(evidence, strong)
    cluster_of = rules.check_clusters(evidence, clusters)
    hidden = folder.document(HIDDEN, dict[str, list[str]]) if _holds_never(pool_of) else None
    rules.check_never(evidence, hidden or {})
    certificate.check_weights(evidence, own)
    pairs = (len(strong), weak, runs)
    certificate.check_counts(evidence, pool_of, clusters, pairs, cluster_of)
    certificate.check_nearest(evidence, pool_of)
    suspected = [*weak, *runs, *(each.problems for each in evidence.stated.embedding_suspicions)]
    return check_split(evidence, clusters, pool_of, suspected, earlier)


def _holds_never(pool_of: dict[str, str]) -> bool:
    return NEVER in pool_of.values()


def _check_places(folder: Folder, tasks: dict[str, Task], pool_of: dict[str, str]) -> None:
    """Every published problem has a pool, and no other one has a published pool."""
    for name in tasks:
        if pool_of.get(name) not in POOLS:
            folder.complain("pool", f"problem {name!r} is published and has no published pool")
    for name, pool in pool_of.items():
        if pool != NEVER and name not in tasks:
            folder.complain("pool", f"problem {name!r} of {pool} is not published")


class _Origin(msgspec.Struct, frozen=True):
    trajectory_id: str
    pool: str
    problem_id: str
    cluster_id: str


def _check_lineage(folder: Folder, rows: list[Row]) -> None:
    """Every row has one lineage, which names the same pool, problem and cluster."""
    origin: dict[str, _Origin] = {}
    for place, each in folder.lines(LINEAGE, _Origin):
        if each.trajectory_id in origin:
            folder.complain("provenance", f"{each.trajectory_id} has two", place)
        origin[each.trajectory_id] = each
    for row in rows:
        own = origin.pop(row.trajectory_id, None)
        if own is None:
            folder.complain("provenance", f"row {row.trajectory_id} has none", row.place)
        elif (own.pool, own.problem_id, own.cluster_id) != (
            row.pool,
            row.problem_id,
            row.cluster_id,
        ):
            what = f"{row.trajectory_id} comes from {own.problem_id!r} of {own.pool}"
            folder.complain("provenance", what, row.place)
    for name in origin:
        folder.complain("provenance", f"{name} has provenance and no row")


def _weights(
    folder: Folder, tasks: dict[str, Task], pool_of: dict[str, str], stated: Stated
) -> tuple[dict[str, int], bool]:
    """The word weights, and whether they were counted here."""
    if not _holds_never(pool_of):
        return weights_of(tasks, stated), True
    stored = folder.document(WEIGHTS, _Weights)
    return (stored.weight if stored else {}), False


class _Weights(msgspec.Struct, frozen=True):
    weight: dict[str, int]


def _strays(
    folder: Folder, tasks: dict[str, Task], rows: list[Row], pools: dict[str, set[str]]
) -> dict[str, Task]:
    """Texts of rows that are no published problem's, as problems of their own.

    Also adds the pool of every row to its problem's pools.
    """
    strays: dict[str, Task] = {}
    texts = {name: folded(task.query) for name, task in tasks.items()}
    for row in rows:
        known = texts.get(row.problem_id)
        if known is None:
            folder.complain("problem", f"problem {row.problem_id!r} is not published", row.place)
        elif row.pool not in pools.get(row.problem_id, ()):
            what = f"a row of {row.problem_id!r}, which belongs elsewhere"
            folder.complain("pool", what, row.place)
        if known is not None:
            pools.setdefault(row.problem_id, set()).add(row.pool)
        if known is None or folded(row.query) != known:
            name = f"row {row.trajectory_id}"
            if known is not None:
                what = f"the row asks something else than problem {row.problem_id!r}"
                folder.complain("query", what, row.place)
            strays[name] = Task(problem_id=name, query=row.query)
            pools[name] = {row.pool}
    return strays


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    """Leaks between two problems first."""
    return tuple(sorted(findings, key=lambda each: (not each.pair, each.rule, each.pair)))


def _notes(stated: Stated, own: bool) -> tuple[str, ...]:
    notes = []
    if stated.guard.lexical is None:
        notes.append("no lexical edges were asked for")
    if stated.guard.embedding is not None:
        notes.append("edges of meaning were taken from the certificate: they need the model")
    if not own:
        notes.append("word weights were taken from weights.json: never-touch problems are in them")
    return tuple(notes)
