"""Finished shards become a corpus: rows are compared by small columns, and only kept rows are read.

What is in memory of a row is what a build remembers of it, 500 bytes. Texts are read for rows that
may be equal, for searches that may have known too much, and for what is published. The steps are
those of `palio.corpus.build`; rows stand in the order of shards and lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from palio import __version__
from palio.corpus.build import CAP, DUPLICATES, POOL_FILE
from palio.corpus.candidate import Candidate, Selected
from palio.corpus.certificate import certify
from palio.corpus.check import check_corpus
from palio.corpus.config import POOLS, CorpusConfig, checked
from palio.corpus.funnel import FUNNEL, Funnel, Tally, agent_counts
from palio.corpus.lineage import PROVENANCE, lineage_of
from palio.corpus.neighbours import distinct
from palio.corpus.rows import RowWriter, row_of
from palio.corpus.screening import KNOWN
from palio.corpus.selection import capped
from palio.corpus.separation import GUARD, Separation, separate, withheld
from palio.corpus.shards.rows import ShardRows
from palio.corpus.shards.shard import without_collection
from palio.corpus.shards.survivors import GATES, Survivors
from palio.corpus.spool import RejectWriter
from palio.corpus.staging import staged
from palio.judging.richness import richness_verdict
from palio.records import ConfigError, Problem, Provenance, digest, to_json
from palio.rollout.verdicts import Judged, Verdicts
from palio.suites.clusters import by_id
from palio.suites.embedding import VectorStore
from palio.world.artefacts import MANIFEST, file_digest, write_lines, write_manifest

SHARDS = "shards"
"""The step that the shards took: reading, and the gates that need nothing but a row."""


def assemble(
    shards: str | Path,
    problems: Iterable[Problem],
    config: CorpusConfig,
    out: Path,
    *,
    verdicts: Mapping[str, Verdicts] | None = None,
    previous: Mapping[str, str] | None = None,
    vectors: VectorStore | None = None,
) -> Funnel:
    """Select, split, certify and write a corpus folder from finished shards.

    Args:
        shards: folder or URL of `palio corpus shard`.
        problems: every problem that a row may refer to.
        config: what is decided between rows; the gates of one row were applied by the shards.
        out: the corpus folder; an older corpus in it is replaced.
        verdicts: trajectory id -> verdicts, where the configuration asks for outcomes or reasoning.
        previous: problem id -> pool that must not change.
        vectors: where embedding edges take their vectors from.

    Raises:
        ConfigError: scrubbing is asked for, which only a build does.
        InputError: there are no shards, or one is not what its manifest says.
        IntegrityError: the pools leak, or a row was lost; an older corpus stays as it was.
    """
    if config.scrub:
        raise ConfigError("shards are not scrubbed", remedy="use palio corpus build, or scrub = []")
    known = by_id(problems)
    separation = separate(known.values(), checked(config), previous, vectors)
    rows = ShardRows(str(shards), known)
    tally = Tally((SHARDS, KNOWN, *GATES, GUARD, DUPLICATES, CAP))
    for manifest in rows.manifests:
        tally.take(SHARDS, manifest.taken)
        tally.keep(SHARDS, manifest.kept)
        for reason, count in manifest.rejected.items():
            for _ in range(count):
                tally.drop(SHARDS, reason)
    with staged(out, ".assembling") as stage:
        with closing(RejectWriter(stage, keep_bodies=False)) as rejects:
            told = Survivors(known, config, separation, verdicts or {}, tally, rejects)
            with without_collection():
                survivors = told.of(rows)
            kept = _selected(survivors, rows, config, separation, tally, rejects)
        with without_collection():
            _write_pools(stage, kept, rows, separation, verdicts or {})
        counts = check_corpus(stage, known)
        agents = agent_counts(told.agents, (each.agent for each in kept))
        funnel = Funnel(steps=tally.steps(), pools=counts, agents=agents).check()
        for name, data in {FUNNEL: funnel, POOL_FILE: separation.pool_of}.items():
            write_lines(stage / name, [msgspec.json.format(to_json(data)), b"\n"])
        certify(stage, known, separation, config)
        inputs = {**rows.inputs(), "problems": digest(list(known.values()))}
        manifest_of = _manifest(stage, config, funnel.counts(), inputs)
        (out / MANIFEST).unlink(missing_ok=True)
        for path in sorted(stage.iterdir()):
            path.replace(out / path.name)
    write_manifest(manifest_of, out / MANIFEST)
    return funnel


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
            given = verdicts.get(candidate.trajectory_id, Verdicts())
            if given.richness is None:
                given = msgspec.structs.replace(given, richness=richness_verdict(trajectory))
            judged = Judged(trajectory=trajectory, verdicts=given)
            lineage.write(to_json(lineage_of(judged, candidate, pool, cluster)) + b"\n")


def _manifest(
    stage: Path, config: CorpusConfig, counts: dict[str, int], inputs: dict[str, str]
) -> Provenance:
    return Provenance(
        kind="corpus",
        tool_version=__version__,
        config=msgspec.to_builtins(config),
        config_digest=config.digest(),
        inputs=inputs,
        outputs={path.name: file_digest(path) for path in sorted(stage.iterdir())},
        counts=counts,
    )
