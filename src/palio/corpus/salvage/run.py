"""A stream of traces in; salvaged rows, rejects with reasons and a manifest out, all counted.

The same traces give the same bytes, whatever the number of threads: rows keep the order in which
they came in.
"""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec
import zstandard

from palio import __version__
from palio.corpus.earlier import READ
from palio.corpus.gates import Drop, unreadable
from palio.corpus.replay import Worlds
from palio.corpus.salvage.moment import Rewriter
from palio.corpus.salvage.rewrite import SalvageConfig, salvage_one
from palio.corpus.spool import REJECTS, RejectWriter
from palio.records import (
    InputError,
    IntegrityError,
    Provenance,
    Record,
    Reject,
    Trajectory,
    digest,
    to_json,
)
from palio.world.artefacts import MANIFEST, file_digest, replacing, write_manifest

ROWS = "trajectories.jsonl.zst"
"""The salvaged rows; `palio corpus build --trajectories` takes the folder."""

Accept = Callable[[Trajectory], Drop | None]
"""Says why a trace is not worth rewriting, such as a failed outcome."""


class AgentSalvage(Record, frozen=True, omit_defaults=False):
    """What became of one agent's traces."""

    taken: int
    salvaged: int
    rejected: dict[str, int]


class SalvageReport(Record, frozen=True, omit_defaults=False):
    """taken = salvaged + the sum of rejected; unreadable lines are among both."""

    rewriter: str
    taken: int
    salvaged: int
    rejected: dict[str, int]
    agents: dict[str, AgentSalvage]


class _Counts:
    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.salvaged: Counter[str] = Counter()
        self.rejected: dict[str, Counter[str]] = {}

    def add(self, agent: str, made: Trajectory | Drop) -> None:
        self.taken[agent] += 1
        if isinstance(made, Drop):
            self.rejected.setdefault(agent, Counter())[made.reason] += 1
        else:
            self.salvaged[agent] += 1

    def report(self, rewriter: str, unread: Iterable[Reject]) -> SalvageReport:
        lines = Counter(unreadable(line).reason for line in unread)
        every = sum(self.rejected.values(), Counter(lines))
        agents = {
            agent: AgentSalvage(
                taken=self.taken[agent],
                salvaged=self.salvaged[agent],
                rejected=dict(self.rejected.get(agent, Counter()).most_common()),
            )
            for agent in sorted(self.taken)
        }
        return SalvageReport(
            rewriter=rewriter,
            taken=self.taken.total() + lines.total(),
            salvaged=self.salvaged.total(),
            rejected=dict(every.most_common()),
            agents=agents,
        )


def salvage(
    trajectories: Iterable[Trajectory],
    worlds: Worlds,
    rewriter: Rewriter,
    out: Path,
    config: SalvageConfig | None = None,
    *,
    accept: Accept | None = None,
    workers: int = 1,
    inputs: Mapping[str, str] | None = None,
    unread: Iterable[Reject] = (),
    progress: Callable[[int], None] | None = None,
) -> SalvageReport:
    """Salvage a stream into a folder: rows, rejects (whole traces), and last the manifest.

    A line that could not be read is among the rejects by its place.

    Args:
        trajectories: any traces; those that are agentic already are counted as rejects.
        worlds: where they are replayed.
        rewriter: writes the thinking; must be thread-safe for `workers` above 1.
        out: the folder to write.
        config: choices; None = the defaults.
        accept: asked before anything else of a trace.
        workers: threads; only a model behind a server gains from more than one.
        inputs: name -> digest of input files, for the manifest.
        unread: lines that the reader could not decode, read after the stream.
        progress: called with the number of traces done, after each.

    Raises:
        InputError: workers below 1.
        IntegrityError: a trace was lost or counted twice.
    """
    if workers < 1:
        raise InputError(f"workers {workers} must be at least 1")
    chosen = config or SalvageConfig()
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)

    def one(trajectory: Trajectory) -> Trajectory | Drop:
        drop = accept(trajectory) if accept else None
        if drop is not None:
            return drop
        replayer = worlds.replayer(trajectory)
        if replayer is None:
            return Drop(reason="catalogue_missing", detail=trajectory.catalogue)
        return salvage_one(trajectory, replayer, rewriter, chosen)

    counts = _Counts()
    _write(out, _mapped(one, trajectories, workers), counts, unread, progress)
    report = counts.report(rewriter.rewriter_id, unread)
    if report.taken != report.salvaged + sum(report.rejected.values()):
        raise IntegrityError("a trace was lost while salvaging", where=str(out))
    write_manifest(_manifest(out, chosen, report, inputs or {}), out / MANIFEST)
    return report


def _write(
    out: Path,
    pairs: Iterable[tuple[Trajectory, Trajectory | Drop]],
    counts: _Counts,
    unread: Iterable[Reject],
    progress: Callable[[int], None] | None,
) -> None:
    """Rows to one file, rejects to the other, every trace to the counts."""
    with (
        closing(RejectWriter(out, keep_bodies=True)) as rejects,
        replacing(out / ROWS) as raw,
        zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as packed,
        io.BufferedWriter(packed, 1 << 20) as stream,  # type: ignore[type-var]
    ):
        for done, (source, made) in enumerate(pairs, start=1):
            counts.add(source.agent.name, made)
            if isinstance(made, Drop):
                ids = (source.trajectory_id, source.problem_id, source.agent.name)
                rejects.write("salvage", made, ids, to_json(source))
            else:
                stream.write(to_json(made) + b"\n")
            if progress is not None:
                progress(done)
        for line in unread:
            rejects.write(READ, unreadable(line), ("", "", ""), b"null")


def _mapped(
    one: Callable[[Trajectory], Trajectory | Drop],
    trajectories: Iterable[Trajectory],
    workers: int,
) -> Iterator[tuple[Trajectory, Trajectory | Drop]]:
    """Each trace with what it became, in order; at most 2 * workers are in flight."""
    stream = iter(trajectories)
    if workers == 1:
        for trajectory in stream:
            yield trajectory, one(trajectory)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[tuple[Trajectory, Future[Trajectory | Drop]]] = deque(
            (trajectory, pool.submit(one, trajectory)) for trajectory in islice(stream, 2 * workers)
        )
        while waiting:
            trajectory, future = waiting.popleft()
            yield trajectory, future.result()
            for following in islice(stream, 1):
                waiting.append((following, pool.submit(one, following)))


def _manifest(
    out: Path, config: SalvageConfig, report: SalvageReport, inputs: Mapping[str, str]
) -> Provenance:
    echoed = {**msgspec.to_builtins(config), "rewriter": report.rewriter}
    counts = {"in": report.taken, "kept": report.salvaged}
    counts |= {f"rejected:{reason}": count for reason, count in report.rejected.items()}
    return Provenance(
        kind="salvage",
        tool_version=__version__,
        config=echoed,
        config_digest=digest(echoed),
        inputs=dict(inputs),
        outputs={name: file_digest(out / name) for name in (REJECTS, ROWS)},
        counts=counts,
    )
