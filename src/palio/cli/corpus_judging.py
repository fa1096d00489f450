"""What `palio corpus build`, `daily` and `assemble` read before they judge: panel and digests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from palio.cli.world import tell_unread, warn_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from palio.corpus.config import CorpusConfig
    from palio.corpus.reading import TraceReader
    from palio.records import OutcomeVerdict, Problem, ReasoningVerdict, Trajectory
    from palio.rollout.verdicts import Judged, Panel, ReasoningJudge


class Bench(NamedTuple):
    """Whoever judges, and what they judge by.

    Attributes:
        opinions: outcome verdicts of validators by trajectory id.
        inputs: name -> digest of every input file, for the manifest.
        threads: runs that the reasoning judge looks at at a time.
    """

    problems: tuple[Problem, ...]
    panel: Panel
    opinions: dict[str, tuple[OutcomeVerdict, ...]]
    inputs: dict[str, str]
    threads: int

    def judged(self, trajectories: Iterable[Trajectory], workers: int) -> Iterator[Judged]:
        """The stream with our verdicts and those of the validators.

        A judge that asks models waits for them in threads of this process, whatever `workers` is:
        one process keeps one rate limit and one file of replies.
        """
        from palio.corpus.opinions import with_opinions
        from palio.rollout.verdicts import judge_all

        processes = workers if self.threads == 1 else 1
        judged = judge_all(trajectories, self.panel, workers=processes, threads=self.threads)
        yield from with_opinions(judged, self.opinions)

    def recall(self, known: Mapping[str, ReasoningVerdict]) -> None:
        """Ask the judge of nothing that it said already."""
        from palio.corpus.opinions import Recalled

        if known:
            self.panel.judge = Recalled(self.panel.judge, known)


class Judging(NamedTuple):
    """The inputs of a build: traces, and whoever judges them."""

    reader: TraceReader
    bench: Bench

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of all suites."""
        return self.bench.problems

    @property
    def inputs(self) -> dict[str, str]:
        """Name -> digest of every input file; that of standard input comes last."""
        return self.bench.inputs

    def judged(self, trajectories: Iterable[Trajectory], workers: int) -> Iterator[Judged]:
        """The stream with all verdicts."""
        yield from self.bench.judged(trajectories, workers)
        self.inputs.update(self.reader.digests(stdin_only=True))

    def told(self) -> Iterator[str]:
        """What whoever built should know of what was read: one sentence each."""
        reader = self.reader
        foreign = {name: count for name, count in reader.formats.items() if name != "palio"}
        if foreign:
            counts = ", ".join(f"{count:,} {name}" for name, count in sorted(foreign.items()))
            yield f"foreign traces: {counts}"
        if reader.referred:
            yield f"{reader.referred:,} of them found their problem by the request alone"
        if reader.losses:
            counts = ", ".join(f"{name} {n:,}" for name, n in reader.losses.most_common(8))
            yield f"changed in reading: {counts}"
        if reader.skipped:
            yield f"{len(reader.skipped):,} files of the folders are no traces, passed over"


def judging(
    config: CorpusConfig,
    trajectories: Sequence[Path],
    suites: Sequence[Path],
    catalogues: Sequence[Path],
    verdicts: Sequence[Path],
    encoder: str,
    judge: ReasoningJudge | None = None,
) -> Judging:
    """Read suites, catalogues and verdicts, and open the trajectory files.

    Args and errors are those of `bench_of`, with `trajectories` files, folders and patterns.
    """
    from palio.corpus.reading import TraceReader

    bench = bench_of(config, suites, catalogues, verdicts, encoder, judge)
    stdin = sys.stdin.buffer if Path("-") in trajectories else None
    reader = TraceReader(trajectories, stdin=stdin, problems=bench.problems)
    bench.inputs.update(reader.digests())
    return Judging(reader, bench)


def bench_of(
    config: CorpusConfig,
    suites: Sequence[Path],
    catalogues: Sequence[Path],
    verdicts: Sequence[Path],
    encoder: str,
    judge: ReasoningJudge | None = None,
) -> Bench:
    """Read suites, catalogues and verdicts.

    Args:
        config: decides the outcome profiles.
        suites: of the problems that they are runs of.
        catalogues: of their products.
        verdicts: files of validators' verdicts.
        encoder: name of the title similarity.
        judge: of the reasoning; None = the evidence judge.

    Raises:
        InputError: a file is missing or wrong.
        ConfigError: no encoder has that name.
    """
    from palio.cli.judge_choice import threads_of
    from palio.corpus.opinions import outcomes_by_trajectory
    from palio.judging.encoders import encoder_named
    from palio.rollout.verdicts import Panel
    from palio.world.artefacts import file_digest
    from palio.world.catalogue import read_catalogues

    problems = problems_of(suites)
    held, rejects = read_catalogues(catalogues)
    warn_of(rejects)
    profiles = tuple(dict.fromkeys(p for p in (config.outcome, "oro", "strict") if p != "none"))
    products = {name: one.products for name, one in held.items()}
    panel = Panel(problems, products, profiles, encoder_named(encoder), judge)
    inputs = {f"suite:{path.name}": file_digest(path) for path in suites}
    inputs |= {f"catalogue:{name}": one.digest for name, one in held.items()}
    inputs |= {f"verdicts:{path.name}": file_digest(path) for path in verdicts}
    if judge is not None:
        inputs[f"judge:{judge.judge_id.name}"] = judge.judge_id.config_digest
    opinions = outcomes_by_trajectory(verdicts)
    return Bench(problems, panel, opinions, inputs, threads_of(panel.judge))


def problems_of(suites: Sequence[Path]) -> tuple[Problem, ...]:
    """The problems of all suites, in order; rows that are none are told on standard error."""
    from palio.suites.files import read_any_suite

    read = [read_any_suite(path) for path in suites]
    tell_unread([row for _, rejects in read for row in rejects])
    return tuple(problem for suite, _ in read for problem in suite.problems)
