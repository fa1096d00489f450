"""Judged trajectories become a corpus: gated, deduplicated, capped, split without leaks, counted.

Two passes. The first streams every row through the gates and spools the survivors; the second
writes each survivor to its pool. In between, only ids and numbers are in memory. Which rows are
kept, and the bytes of the pool files, do not depend on the order in which trajectories arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from palio.corpus.candidate import Candidate, Selected
from palio.corpus.certificate import certify
from palio.corpus.check import check_corpus
from palio.corpus.config import POOLS, CorpusConfig, checked
from palio.corpus.earlier import READ, Earlier
from palio.corpus.funnel import FUNNEL, Funnel, Tally, agent_counts
from palio.corpus.gates import TokenCount, row_steps, unreadable
from palio.corpus.lineage import PROVENANCE, lineage_of
from palio.corpus.neighbours import distinct
from palio.corpus.rows import RowWriter, row_of
from palio.corpus.screening import KNOWN, Screening, Steps
from palio.corpus.scrub import Scrubber, placeholders
from palio.corpus.selection import capped
from palio.corpus.separation import GUARD, Separation, never_touched, separate, withheld
from palio.corpus.spool import RejectWriter, Spool
from palio.corpus.staging import corpus_manifest, publish, staged
from palio.records import (
    InputError,
    Message,
    Problem,
    Reject,
    digest,
    from_json,
    to_json,
)
from palio.rollout.verdicts import Judged
from palio.suites.clusters import by_id
from palio.suites.embedding import VectorStore
from palio.world.artefacts import MANIFEST, write_lines, write_manifest

POOL_FILE = "pools.json"
DUPLICATES, CAP = "duplicates", "cap"


def build(
    judged: Iterable[Judged],
    problems: Iterable[Problem],
    config: CorpusConfig,
    out: Path,
    *,
    inputs: Mapping[str, str] | None = None,
    previous: Mapping[str, str] | None = None,
    earlier: Earlier | None = None,
    count: TokenCount | None = None,
    vectors: VectorStore | None = None,
    unread: Sequence[Reject] = (),
    progress: Callable[[int], None] | None = None,
    refuse_strangers: bool = False,
) -> Funnel:
    """Build a corpus folder.

    Writes `<pool>.jsonl` and `<pool>.parquet` for train, development and heldout, the provenance of
    every kept row, rejects, problems, `pools.json`, `funnel.json`, the split's certificate and,
    last, `manifest.json`. The files appear only after the finished pools were found disjoint.

    Args:
        judged: trajectories with their verdicts, streamed once.
        problems: every problem that a trajectory may refer to.
        config: all choices.
        out: the corpus folder; an older corpus in it is replaced.
        inputs: name -> digest of the input files, for the manifest.
        previous: problem id -> pool that must not change (`read_pools` of an earlier corpus).
        earlier: rows that an earlier build with the same configuration judged and gated.
        count: exact tokens of a row; asked only about rows whose bytes exceed the budget.
        vectors: where embedding edges take their vectors from; the model without a cache if None.
        unread: what the reader of `judged` could not decode; counted as the first step, it may
            grow while the stream is read.
        progress: called with the number of rows gated so far, after every row.
        refuse_strangers: whether rows that are all of unknown problems are an error.

    Raises:
        ConfigError: the configuration contradicts itself.
        InputError: no row is of a known problem, and strangers are refused.
        IntegrityError: the pools leak, or a row was lost; an older corpus stays as it was.
    """
    if config.scrub:
        scrubber = Scrubber(config.scrub, config.phone_region)
        judged, problems = map(scrubber.judged, judged), map(scrubber.problem, problems)
    known = by_id(problems)
    plan = _Plan(known, config, separate(known.values(), checked(config), previous, vectors))
    with staged(out, ".building") as stage:
        came = _Incoming(judged, earlier or Earlier(()), unread, progress, refuse_strangers)
        funnel, found, scrubbed = _assemble(stage, came, plan, row_steps(count, plan.problems))
        told = {FUNNEL: to_json(funnel), POOL_FILE: to_json(plan.separation.pool_of)}
        for name, data in {**came.earlier.files, **told}.items():
            write_lines(stage / name, [msgspec.json.format(data), b"\n"])
        certify(stage, plan.problems, plan.separation, config)
        counts = funnel.counts() | {f"scrubbed:{kind}": n for kind, n in scrubbed.items()}
        manifest = corpus_manifest(stage, config, counts, {**(inputs or {}), **found})
        publish(stage, out)
    write_manifest(manifest, out / MANIFEST)
    return funnel


class _Plan(NamedTuple):
    """What is known before the first row: the problems and where their rows will go."""

    problems: dict[str, Problem]
    config: CorpusConfig
    separation: Separation


class _Incoming(NamedTuple):
    """What enters a build, and whom to tell about it."""

    judged: Iterable[Judged]
    earlier: Earlier
    unread: Sequence[Reject]
    progress: Callable[[int], None] | None
    refuse_strangers: bool


def _assemble(
    stage: Path, came: _Incoming, plan: _Plan, steps: Steps
) -> tuple[Funnel, dict[str, str], Counter[str]]:
    """Make and check the pool files in `stage`.

    Gives the funnel, the input digests, and how many values each kind of placeholder stands for.
    """
    tally = Tally((READ, KNOWN, *(name for name, _ in steps), GUARD, DUPLICATES, CAP))
    with ExitStack() as files:
        spool = files.enter_context(closing(Spool(stage / "spool")))
        writer = RejectWriter(stage, keep_bodies=plan.config.keep_bodies)
        rejects = files.enter_context(closing(writer))
        total, refuse = (
            came.earlier.total or "",
            never_touched(plan.separation, came.earlier.refuse),
        )
        screening = Screening(
            *(plan.problems, plan.config, steps, spool, rejects, tally), refuse=refuse, total=total
        )
        survivors = _screened(screening, came)
        if came.refuse_strangers:
            _refuse_strangers(tally)
        _count_unread(came.unread, tally, rejects)
        kept = _chosen(survivors, plan, tally, spool, rejects)
        scrubbed = _write_pools(stage, kept, spool, plan)
    counts = check_corpus(stage, plan.problems)
    agents = agent_counts(screening.agents, (each.agent for each in kept))
    steps_of_all = came.earlier.funnel(tally.steps())
    funnel = Funnel(steps=steps_of_all, pools=counts, agents=agents).check()
    found = {"problems": digest(list(plan.problems.values()))}
    if came.earlier.total is not None:
        found["trajectories"] = screening.digest()
    return funnel, found, scrubbed


def _screened(screening: Screening, came: _Incoming) -> list[Candidate]:
    settled = (screening.settle(row) for row in came.earlier.rows)
    survivors = [candidate for candidate in settled if candidate is not None]
    for number, judged in enumerate(came.judged, start=1):
        if (candidate := screening.screen(judged)) is not None:
            survivors.append(candidate)
        if came.progress is not None:
            came.progress(number)
    return survivors


def _refuse_strangers(tally: Tally) -> None:
    """Rows that are all of unknown problems mean a wrong suite, not a corpus without rows.

    Raises:
        InputError: so it is; nothing is written.
    """
    known = next(step for step in tally.steps() if step.name == KNOWN)
    if known.taken and known.rejected.get("unknown_problem") == known.taken:
        raise InputError(
            f"none of the {known.taken:,} trajectories is of a problem of the suites",
            remedy="name the suites that they were made with",
        )


def _count_unread(unread: Sequence[Reject], tally: Tally, rejects: RejectWriter) -> None:
    """The step before all others: what was decoded has been counted row by row."""
    tally.take(READ, len(unread))
    for line in unread:
        drop = unreadable(line)
        tally.drop(READ, drop.reason)
        rejects.write(READ, drop, ("", "", ""), b"null")


def _chosen(
    survivors: list[Candidate],
    plan: _Plan,
    tally: Tally,
    spool: Spool,
    rejects: RejectWriter,
) -> list[Candidate]:
    """Apply the steps after the gates; the dropped rows leave the spool for the rejects."""
    rows = survivors

    def apply(step: str, selected: Selected) -> list[Candidate]:
        kept, dropped = selected
        tally.take(step, len(kept) + len(dropped))
        tally.keep(step, len(kept))
        for row, drop in dropped:
            tally.drop(step, drop.reason)
            ids = (row.trajectory_id, row.problem_id, row.agent)
            rejects.write(step, drop, ids, spool.body(row.place))
        return kept

    def read(row: Candidate) -> Sequence[Message]:
        return spool.judged(row.place).trajectory.messages

    cluster_of = plan.separation.clustering.cluster_of
    rows = apply(GUARD, withheld(rows, plan.separation))
    rows = apply(DUPLICATES, distinct(rows, plan.config, cluster_of, read))
    return apply(CAP, capped(rows, plan.config, cluster_of, plan.separation.pool_of))


def _write_pools(stage: Path, kept: Sequence[Candidate], spool: Spool, plan: _Plan) -> Counter[str]:
    """Write every kept row to its pool, in order of trajectory id; counts scrubbed values."""
    scrubbed: Counter[str] = Counter()
    with ExitStack() as files:
        writers = {pool: files.enter_context(closing(RowWriter(stage, pool))) for pool in POOLS}
        lineage = files.enter_context((stage / PROVENANCE).open("wb"))
        for candidate in kept:
            judged = spool.judged(candidate.place)
            pool = plan.separation.pool_of[candidate.problem_id]
            cluster = plan.separation.clustering.cluster_of[candidate.problem_id]
            writers[pool].write(row_of(judged.trajectory, cluster))
            lineage.write(to_json(lineage_of(judged, candidate, pool, cluster)) + b"\n")
            if plan.config.scrub:
                scrubbed.update(placeholders(to_json(judged.trajectory.messages).decode()))
    return scrubbed


def read_pools(folder: Path) -> dict[str, str]:
    """Problem id -> pool of an earlier corpus, to be given as `previous`.

    Raises:
        InputError: the folder has no pools file, or a wrong one.
    """
    path = folder / POOL_FILE
    if not path.is_file():
        raise InputError("no pools file here", where=str(path), remedy="name a corpus folder")
    return from_json(path.read_bytes(), dict[str, str], where=str(path))
