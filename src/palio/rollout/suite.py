"""A suite runs to its end whatever its agents do, and goes on where it was killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from palio import __version__
from palio.agents.spec import AgentSpec
from palio.broker.journal import FILE as JOURNAL
from palio.broker.journal import BodyJournal
from palio.broker.limits import Limits
from palio.broker.policy import BrokerPolicy
from palio.broker.session import Clock
from palio.broker.upstream import Upstream
from palio.records import (
    ConfigError,
    Ending,
    Problem,
    Provenance,
    Record,
    Trajectory,
    digest,
    trajectory_key,
)
from palio.rollout.config import agents_config, hold_config
from palio.rollout.journal import FILE, Journal
from palio.rollout.problem import StoppedError, agent_ref, run_problem
from palio.sandbox.spec import Driver
from palio.world.artefacts import MANIFEST, file_digest, write_manifest
from palio.world.tools import SEVEN_TOOLS
from palio.world.world import World

RECORD = "record"
"""Folder of the journal of all bodies, below the run folder."""
RETRIES = 2
"""Attempts after the first when infrastructure failed; each stays in the record."""


@dataclass(frozen=True)
class Job:
    """One agent on one problem of a suite."""

    spec: AgentSpec
    problem: Problem
    world: World
    seed: int = 0
    suite_id: str = ""

    def key(self, attempt: int) -> str:
        """The trajectory id of an attempt, known before it is run."""
        return trajectory_key(
            agent=agent_ref(self.spec),
            problem_id=self.problem.problem_id,
            catalogue_digest=self.world.catalogue.digest,
            seed=self.seed + self.spec.seed,
            attempt=attempt,
        )


def world_of(problem: Problem, worlds: Mapping[str, World]) -> World:
    """The world that a problem must be solved in.

    A problem that names no catalogue, as those of imported suites, takes the only one given.

    Raises:
        ConfigError: its catalogue is not among `worlds`, or it names none and there are several.
    """
    if problem.catalogue in worlds:
        return worlds[problem.catalogue]
    if not problem.catalogue and len(worlds) == 1:
        return next(iter(worlds.values()))
    raise ConfigError(
        f"the catalogue {problem.catalogue!r} of this problem is not given",
        where=f"problem {problem.problem_id}",
        remedy=f"given are: {', '.join(sorted(worlds)) or 'none'}; name its folder",
    )


class Progress(Record, frozen=True):
    """Sent after each finished job: how many are done, of how many, and the record just written."""

    done: int
    total: int
    trajectory: Trajectory


class SuiteReport(Record, frozen=True):
    """What a call of `run_suite` did.

    Attributes:
        jobs: jobs asked for.
        ran: jobs run by this call.
        skipped: jobs whose run already stood in the folder.
        unscored: jobs that still have no scorable run.
        endings: ending -> number of trajectories written by this call, retries included.
        notes: what was found and mended on resume, one sentence each.
        stopped: whether it was stopped before its end.
    """

    jobs: int
    ran: int
    skipped: int
    unscored: int
    endings: dict[str, int]
    seconds: float
    notes: tuple[str, ...] = ()
    stopped: bool = False


def run_suite(
    jobs: Iterable[Job],
    out: Path,
    *,
    driver: Driver,
    upstream: Upstream | None = None,
    limits: Limits | None = None,
    concurrency: int = 4,
    retries: int = RETRIES,
    tools: Sequence[str] = SEVEN_TOOLS,
    config: Mapping[str, Any] | None = None,
    command: str = "",
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    clock: Clock = time.monotonic,
    policy: BrokerPolicy | None = None,
) -> SuiteReport:
    """Run all jobs that have no record in `out` yet; at most `concurrency` at a time.

    A run that infrastructure failed is tried again, at most `retries` times in one call; each
    attempt is kept, with its number. On KeyboardInterrupt running agents are killed, nothing of
    them is recorded, and the interrupt is raised again; `stop` does the same, with a report.

    Args:
        jobs: what to run, in order.
        out: run folder: run.json, trajectories.jsonl, and, at the end, manifest.json.
        driver: how agents' files are run.
        upstream: who answers model calls.
        limits: budget and wall clock of each run.
        concurrency: runs at a time.
        retries: see above.
        tools: names of the tools that the policy harness is told about.
        config: further settings that decide outcomes, compared on resume beside `suite_config`.
        command: how to run the same again, for messages.
        progress: called from this thread after each job.
        stop: see above.
        clock: seconds.
        policy: how the broker treats the runs; its journal stands in ``record/``.

    Raises:
        IntegrityError: the journal was changed.
        ResumeError: `out` holds runs of another configuration.
        ConfigError: two jobs are the same run, or another process is running in `out`.
    """
    asked = (list(jobs), driver, upstream, limits or Limits(), tuple(tools), retries)
    suite = _Suite(*asked, stop or threading.Event(), policy or BrokerPolicy())
    _check_distinct(suite.jobs)
    settings = {**suite.config(), **(config or {})}
    started = clock()
    with Journal(Path(out)) as journal:
        hold_config(Path(out), "suite-run", settings, command)
        (Path(out) / MANIFEST).unlink(missing_ok=True)
        with suite.journal(Path(out)) as bodies:
            report = replace(suite, bodies=bodies).run(journal, concurrency, progress)
        report = msgspec.structs.replace(report, seconds=round(clock() - started, 3))
        if not report.stopped:
            _write_manifest(Path(out), settings, report)
    return report


@dataclass(frozen=True)
class _Suite:
    """What `run_suite` was asked for."""

    jobs: list[Job]
    driver: Driver
    upstream: Upstream | None
    limits: Limits
    tools: tuple[str, ...]
    retries: int
    stop: threading.Event
    policy: BrokerPolicy
    bodies: BodyJournal | None = None

    def journal(self, out: Path) -> AbstractContextManager[BodyJournal | None]:
        return BodyJournal(out / RECORD) if self.policy.journal else nullcontext()

    def config(self) -> dict[str, Any]:
        config = suite_config(self.jobs, self.driver, self.limits, self.tools)
        usual = BrokerPolicy()
        for name in ("relay", "nonces"):
            if getattr(self.policy, name) != getattr(usual, name):
                # Otherwise left out, so that folders older than it can be resumed.
                config[name] = msgspec.to_builtins(getattr(self.policy, name))
        return config

    def run(
        self, journal: Journal, concurrency: int, progress: Callable[[Progress], None] | None
    ) -> SuiteReport:
        waiting = [job for job in self.jobs if not _is_done(job, journal)]

        def work(job: Job) -> list[Trajectory]:
            return _attempts(job, journal, self.retries, self.stop, self.attempt)

        made = _run_all(waiting, work, concurrency, self.stop, progress, len(self.jobs))
        return SuiteReport(
            jobs=len(self.jobs),
            ran=sum(1 for trajectories in made if trajectories),
            skipped=len(self.jobs) - len(waiting),
            unscored=sum(1 for job in self.jobs if not _is_done(job, journal)),
            endings=dict(Counter(str(t.ending) for each in made for t in each)),
            seconds=0.0,
            notes=(*journal.torn, *(self.bodies.notes if self.bodies else ())),
            stopped=self.stop.is_set(),
        )

    def attempt(self, job: Job, attempt: int) -> Trajectory:
        return run_problem(
            job.spec,
            job.problem,
            job.world,
            driver=self.driver,
            upstream=self.upstream,
            limits=self.limits,
            seed=job.seed,
            attempt=attempt,
            suite_id=job.suite_id,
            tools=self.tools,
            stop=self.stop,
            journal=self.bodies,
            policy=self.policy,
        )


def suite_config(
    jobs: Sequence[Job], driver: Driver, limits: Limits, tools: Sequence[str]
) -> dict[str, Any]:
    """Everything that decides what the runs come out as, as plain data with readable keys."""
    worlds = {job.world.catalogue.catalogue_id: job.world for job in jobs}
    problems = {(job.problem.catalogue, job.problem.problem_id): job.problem for job in jobs}
    return {
        "agents": agents_config(job.spec for job in jobs),
        "worlds": {name: world.digest for name, world in sorted(worlds.items())},
        "problems": digest([problem for _, problem in sorted(problems.items(), key=_by_key)]),
        "suites": sorted({job.suite_id for job in jobs}),
        "seeds": sorted({job.seed for job in jobs}),
        "limits": msgspec.to_builtins(limits),
        "isolation": driver.capabilities.isolation,
        "tools": list(tools),
    }


def _by_key(item: tuple[tuple[str, str], Problem]) -> tuple[str, str]:
    return item[0]


def _check_distinct(jobs: Sequence[Job]) -> None:
    seen: set[str] = set()
    for job in jobs:
        key = job.key(0)
        if key in seen:
            raise ConfigError(
                f"{job.spec.name} is to run twice on {job.problem.problem_id} with seed {job.seed}",
                remedy="give each repetition its own seed",
            )
        seen.add(key)


def _is_done(job: Job, journal: Journal) -> bool:
    attempt = _recorded(job, journal)
    return attempt > 0 and journal.endings[job.key(attempt - 1)] is not Ending.infra


def _recorded(job: Job, journal: Journal) -> int:
    """How many attempts of the job stand in the journal."""
    attempt = 0
    while job.key(attempt) in journal.endings:
        attempt += 1
    return attempt


def _attempts(
    job: Job,
    journal: Journal,
    retries: int,
    stop: threading.Event,
    run: Callable[[Job, int], Trajectory],
) -> list[Trajectory]:
    """Run a job until infrastructure holds or the tries are used up; each try is recorded."""
    made: list[Trajectory] = []
    first = _recorded(job, journal)
    for attempt in range(first, first + retries + 1):
        if stop.is_set():
            break
        try:
            trajectory = run(job, attempt)
        except StoppedError:
            break
        journal.append(trajectory)
        made.append(trajectory)
        if trajectory.ending is not Ending.infra:
            break
    return made


def _run_all(
    jobs: Sequence[Job],
    work: Callable[[Job], list[Trajectory]],
    concurrency: int,
    stop: threading.Event,
    progress: Callable[[Progress], None] | None,
    total: int,
) -> list[list[Trajectory]]:
    made: list[list[Trajectory]] = []
    done = total - len(jobs)
    pool = ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="palio-run")
    try:
        waiting: set[Future[list[Trajectory]]] = {pool.submit(work, job) for job in jobs}
        while waiting and not stop.is_set():
            finished, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in finished:
                made.append(future.result())
                if not made[-1]:
                    continue
                done += 1
                if progress is not None:
                    progress(Progress(done=done, total=total, trajectory=made[-1][-1]))
        for future in waiting:
            future.cancel()
    except BaseException:
        stop.set()
        raise
    finally:
        # Threads end within a second of `stop`: the driver kills its child when it sees it.
        pool.shutdown(wait=True, cancel_futures=True)
    made += [future.result() for future in waiting if not future.cancelled()]
    return made


def _write_manifest(out: Path, config: Mapping[str, Any], report: SuiteReport) -> None:
    counts = {"jobs": report.jobs, "unscored": report.unscored}
    names = (FILE, f"{RECORD}/{JOURNAL}")
    manifest = Provenance(
        kind="suite-run",
        tool_version=__version__,
        config=dict(config),
        config_digest=digest(dict(config)),
        outputs={name: file_digest(out / name) for name in names if (out / name).is_file()},
        counts=counts,
    )
    write_manifest(manifest, out / MANIFEST)
