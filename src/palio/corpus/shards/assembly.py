"""Finished shards become a corpus: the one that a build makes of the same traces.

Where rows are to be judged or scrubbed they go through `palio.corpus.build` itself, gate by gate.
Where they are not, rows are compared by small columns and only kept rows are read: texts of rows
that may be equal, of searches that may have known too much, and of what is published. Rows stand
in the order of shards and lines then. What is in memory of a row is 500 bytes either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from palio.corpus.build import CAP, DUPLICATES, POOL_FILE, build
from palio.corpus.candidate import Candidate, Selected
from palio.corpus.certificate import certify
from palio.corpus.check import check_corpus
from palio.corpus.config import POOLS, CorpusConfig, checked
from palio.corpus.earlier import Earlier
from palio.corpus.funnel import FUNNEL, Funnel, FunnelStep, Tally, agent_counts
from palio.corpus.gates import TokenCount
from palio.corpus.lineage import PROVENANCE, lineage_of
from palio.corpus.neighbours import distinct
from palio.corpus.rows import RowWriter, row_of
from palio.corpus.screening import KNOWN
from palio.corpus.selection import capped
from palio.corpus.separation import GUARD, Separation, separate, withheld
from palio.corpus.shards.rows import ShardRows
from palio.corpus.shards.shard import without_collection
from palio.corpus.shards.stream import ShardStream
from palio.corpus.shards.survivors import GATES, Survivors
from palio.corpus.spool import RejectWriter
from palio.corpus.staging import corpus_manifest, publish, staged
from palio.judging.richness import richness_verdict
from palio.records import Problem, Trajectory, digest, to_json
from palio.rollout.verdicts import Judged, Verdicts
from palio.suites.clusters import by_id
from palio.suites.embedding import VectorStore
from palio.world.artefacts import MANIFEST, write_lines, write_manifest

SHARDS = "shards"
"""The step that the shards took: reading, and the gates that need nothing but a row."""

Judge = Callable[[Iterator[Trajectory]], Iterable[Judged]]
"""A stream of trajectories with verdicts, as `palio.rollout.verdicts.judge_all` makes it."""


def assemble(
    shards: str | Path,
    problems: Iterable[Problem],
    config: CorpusConfig,
    out: Path,
    *,
    verdicts: Mapping[str, Verdicts] | None = None,
    judge: Judge | None = None,
    inputs: Mapping[str, str] | None = None,
    previous: Mapping[str, str] | None = None,
    count: TokenCount | None = None,
    vectors: VectorStore | None = None,
    progress: Callable[[int], None] | None = None,
) -> Funnel:
    """Judge, scrub, select, split, certify and write a corpus folder from finished shards.

    With a judge, or where the configuration scrubs, every row goes through all gates of a build, as
    it is judged and scrubbed; what the shards rejected stays rejected. Shards gate the text as it
    came: where scrubbing is to decide on the budget, give them a larger one.

    Args:
        shards: folder or URL of `palio corpus shard`.
        problems: every problem that a row may refer to.
        config: without a judge the gates of one row are those that the shards applied.
        out: the corpus folder; an older corpus in it is replaced.
        verdicts: trajectory id -> verdicts that are at hand, where nobody judges.
        judge: gives the rows their verdicts.
        inputs: name -> digest of what the judge judges by, for the manifest.
        previous: problem id -> pool that must not change.
        count: exact tokens of a row; asked only about rows whose bytes exceed the budget.
        vectors: where embedding edges take their vectors from.
        progress: called with the number of rows judged and gated so far.

    Raises:
        ConfigError: the configuration contradicts itself.
        InputError: there are no shards, or one is not what its manifest says.
        IntegrityError: the pools leak, or a row was lost; an older corpus stays as it was.
    """
    known = by_id(problems)
    rows = ShardRows(str(shards), known)
    if judge is not None or config.scrub:
        stream = ShardStream(rows, known)
        return build(
            (judge or _as_given(verdicts or {}))(iter(stream)),
            known.values(),
            config,
            out,
            inputs={**rows.inputs(), **(inputs or {})},
            previous=previous,
            earlier=Earlier((), refuse=stream.refuse, before=(_screened(rows),)),
            count=count,
            vectors=vectors,
            progress=progress,
        )
    separation = separate(known.values(), checked(config), previous, vectors)
    return _by_columns(rows, known, config, separation, out, verdicts or {}, inputs or {})


def _by_columns(
    rows: ShardRows,
    known: Mapping[str, Problem],
    config: CorpusConfig,
    separation: Separation,
    out: Path,
    verdicts: Mapping[str, Verdicts],
    inputs: Mapping[str, str],
) -> Funnel:
    """Compare rows by small columns, and read those that are kept."""
    tally = Tally((KNOWN, *GATES, GUARD, DUPLICATES, CAP))
    with staged(out, ".assembling") as stage:
        with closing(RejectWriter(stage, keep_bodies=False)) as rejects:
            told = Survivors(known, config, separation, verdicts, tally, rejects)
            with without_collection():
                survivors = told.of(rows)
            kept = _selected(survivors, rows, config, separation, tally, rejects)
        with without_collection():
            _write_pools(stage, kept, rows, separation, verdicts)
        counts = check_corpus(stage, known)
        agents = agent_counts(told.agents, (each.agent for each in kept))
        steps = (_screened(rows), *tally.steps())
        funnel = Funnel(steps=steps, pools=counts, agents=agents).check()
        for name, data in {FUNNEL: funnel, POOL_FILE: separation.pool_of}.items():
            write_lines(stage / name, [msgspec.json.format(to_json(data)), b"\n"])
        certify(stage, known, separation, config)
        own = {"problems": digest(list(known.values()))}
        found = {**rows.inputs(), **inputs, **own}
        manifest = corpus_manifest(stage, config, funnel.counts(), found)
        publish(stage, out)
    write_manifest(manifest, out / MANIFEST)
    return funnel


def _screened(rows: ShardRows) -> FunnelStep:
    """What all shards took and kept, and why the rest went."""
    rejected: Counter[str] = Counter()
    for manifest in rows.manifests:
        rejected.update(manifest.rejected)
    return FunnelStep(
        name=SHARDS,
        taken=sum(manifest.taken for manifest in rows.manifests),
        kept=sum(manifest.kept for manifest in rows.manifests),
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
    )


def _as_given(verdicts: Mapping[str, Verdicts]) -> Judge:
    """The verdicts that are at hand, and the richness that every trajectory shows itself."""

    def judged(trajectories: Iterator[Trajectory]) -> Iterator[Judged]:
        for one in trajectories:
            yield Judged(trajectory=one, verdicts=_with_richness(verdicts, one))

    return judged


def _with_richness(verdicts: Mapping[str, Verdicts], trajectory: Trajectory) -> Verdicts:
    given = verdicts.get(trajectory.trajectory_id, Verdicts())
    if given.richness is not None:
        return given
    return msgspec.structs.replace(given, richness=richness_verdict(trajectory))


def _selected(
    survivors: list[Candidate],
    rows: ShardRows,
    config: CorpusConfig,
    separation: Separation,
    tally: Tally,
    rejects: RejectWriter,
) -> list[Candidate]:
    """The steps that compare rows, each with its counts."""

    def apply(step: str, selected: Selected) -> list[Candidate]:
        kept, dropped = selected
        tally.take(step, len(kept) + len(dropped))
        tally.keep(step, len(kept))
        for row, drop in dropped:
            tally.drop(step, drop.reason)
            rejects.write(step, drop, (row.trajectory_id, row.problem_id, row.agent), b"null")
        return kept

    cluster_of = separation.clustering.cluster_of
    left = apply(GUARD, withheld(survivors, separation))
    left = rows.told_apart(left)
    left = apply(DUPLICATES, distinct(left, config, cluster_of, rows.messages))
    return apply(CAP, capped(left, config, cluster_of, separation.pool_of))


def _write_pools(
    stage: Path,
    kept: Sequence[Candidate],
    rows: ShardRows,
    separation: Separation,
    verdicts: Mapping[str, Verdicts],
) -> None:
    """Write every kept row to its pool, in order of shards and lines."""
    with ExitStack() as files:
        writers = {pool: files.enter_context(closing(RowWriter(stage, pool))) for pool in POOLS}
        lineage = files.enter_context((stage / PROVENANCE).open("wb"))
        for candidate, trajectory in rows.trajectories(kept):
            pool = separation.pool_of[candidate.problem_id]
            cluster = separation.clustering.cluster_of[candidate.problem_id]
            writers[pool].write(row_of(trajectory, cluster))
            judged = Judged(trajectory=trajectory, verdicts=_with_richness(verdicts, trajectory))
            lineage.write(to_json(lineage_of(judged, candidate, pool, cluster)) + b"\n")
