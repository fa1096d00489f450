"""Scored rollouts of one evaluation: appended as they end, never lost, never run twice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from palio.evaluate.behaviour import behaviour_of
from palio.evaluate.faults import bare
from palio.evaluate.pin import decoded, hold_identity
from palio.evaluate.results import RolloutScore
from palio.records import (
    Fault,
    FaultCode,
    InputError,
    OutcomeVerdict,
    Problem,
    Profile,
    Record,
    Trajectory,
    UpstreamError,
    digest,
    from_json,
    to_json,
)
from palio.rollout.journal import lock_folder
from palio.world.appended import WholeLine, mend_end, whole_lines, whole_records
from palio.world.artefacts import naming

ROWS = "rollouts.jsonl"
IDENTITY = "evaluation.json"

Runner = Callable[[Problem, int, int], Trajectory]
"""(problem, seed, attempt) -> the record of one rollout; called from many threads."""
Scorer = Callable[[Problem, Trajectory, Profile], OutcomeVerdict]
"""The outcome verdict of one rollout under one profile; called from many threads."""


class RolloutRow(Record, frozen=True):
    """One line of `rollouts.jsonl`: what was run, what came out, how it was judged."""

    sample: int
    trajectory: Trajectory
    verdicts: tuple[OutcomeVerdict, ...]
    score: RolloutScore


class Job(Record, frozen=True):
    """One rollout to do."""

    problem: Problem
    sample: int
    seed: int
    attempt: int


class Progress(Record, frozen=True, omit_defaults=False):
    """Where an evaluation stands; `successes` of `scored` so far is no result yet."""

    done: int
    total: int
    scored: int
    successes: int


def sample_seed(base: int, problem_id: str, sample: int) -> int:
    """Seed of one sample: a digest, so that neither order nor subset of problems changes it."""
    return int(digest([base, problem_id, sample])[7:15], 16) & 0x7FFFFFFF


class RolloutLog:
    """The append-only file of one evaluation, and the identity that it belongs to.

    Use it as a context manager: the folder is this process's own while it is open, and a
    half-written last line, left by a kill, is cut off.

    Args:
        folder: holds `rollouts.jsonl` and `evaluation.json`; made when missing.
        identity: everything that decides the results, as plain JSON data. Its model may change as
            long as nothing is scored: a wrong key binds nobody.

    Raises:
        ConfigError: on entering, another process has it open.
        ResumeError: on entering, the folder belongs to another evaluation or model.
        InputError: on entering, a complete line is not a rollout.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.path = folder / ROWS
        self.scores: dict[tuple[str, int], RolloutScore] = {}
        self._identity = identity
        self._lock = threading.Lock()
        self._open: ExitStack | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> RolloutLog:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opening:
            opening.enter_context(lock_folder(folder))
            self._recover()
            hold_identity(folder / IDENTITY, self._identity, scored=self.any_scored)
            self._file = opening.enter_context(self.path.open("ab"))
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._open is not None, "opened by __enter__"
        with naming(self.path):  # what a full disk did not take is tried once more
            self._open.close()
        self._file = None

    @property
    def any_scored(self) -> bool:
        """Whether a rollout counts; those that infrastructure broke do not."""
        return any(score.status == "scored" for score in self.scores.values())

    def append(self, row: RolloutRow) -> None:
        """Write one rollout; it is on the operating system's side when this returns."""
        if self._file is None:
            raise RuntimeError("the log is not open: use it in a with block")
        with self._lock, naming(self.path):
            self._file.write(to_json(row) + b"\n")
            self._file.flush()
            self.scores[row.score.problem_id, row.sample] = row.score

    def _recover(self) -> None:
        self.scores = _scan(self.path)
        mend_end(self.path)


def read_scores(folder: Path) -> dict[tuple[str, int], RolloutScore]:
    """(problem id, sample) -> the last score; a line that is being written is not there yet.

    Raises:
        InputError: there is no evaluation, or a complete line is not a rollout.
    """
    if not (folder / IDENTITY).is_file():
        raise _no_evaluation(folder)
    return _scan(folder / ROWS)


def _scan(path: Path) -> dict[tuple[str, int], RolloutScore]:
    rows = map(_scored_row, whole_lines(path))
    return {(row.score.problem_id, row.sample): row.score for row in rows}


def _scored_row(line: WholeLine) -> ScoredRow:
    try:
        return from_json(line.data, ScoredRow, where=line.where)
    except InputError as error:
        remedy = "take that line out: the rollout that it was is run again"
        raise InputError(error.what, where=line.where, remedy=remedy) from error


class ScoredRow(Record, frozen=True):
    """A row without its trajectory: resuming 16,000 rollouts must not hold them in memory."""

    sample: int
    score: RolloutScore


def read_rollouts(folder: Path) -> Iterator[RolloutRow]:
    """Every row of an evaluation in file order; a later attempt stands after the earlier one.

    Raises:
        InputError: there is no such file, or a line is not a rollout.
    """
    path = folder / ROWS
    if not path.is_file():
        raise _no_evaluation(folder)
    yield from whole_records(path, RolloutRow)


def read_identity(folder: Path) -> dict[str, Any]:
    """What an evaluation folder says it belongs to.

    Raises:
        InputError: there is no evaluation, or the file does not say what it was made of.
    """
    path = folder / IDENTITY
    if not path.is_file():
        raise _no_evaluation(folder)
    found = decoded(path)
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise InputError(
            f"not an evaluation's identity: it has no {missing[0]}",
            where=str(path),
            remedy="it was cut off or edited: evaluate again, with another --out",
        )
    return found


_KEYS = ("policy", "settings", "problems", "worlds", "encoder")


def _no_evaluation(folder: Path) -> InputError:
    return InputError(
        "holds no evaluation", where=str(folder), remedy="`palio eval run --out` makes one"
    )


def open_jobs(
    problems: Sequence[Problem], samples: int, seed: int, done: dict[tuple[str, int], RolloutScore]
) -> list[Job]:
    """What is left to run: missing rollouts, and another attempt at those infrastructure broke."""
    jobs = []
    for sample in range(samples):
        for problem in problems:
            before = done.get((problem.problem_id, sample))
            if before is None or before.status == "unscored":
                attempt = 0 if before is None else before.attempt + 1
                own = sample_seed(seed, problem.problem_id, sample)
                jobs.append(Job(problem=problem, sample=sample, seed=own, attempt=attempt))
    return jobs


class Hands(Protocol):
    """Carries rollouts out: threads here, or workers elsewhere.

    Attributes:
        flight: jobs that it should hold at a time.
    """

    flight: int

    def submit(self, job: Job) -> Future[RolloutRow]:
        """Start a rollout."""


class _Threads:
    def __init__(
        self, pool: ThreadPoolExecutor, threads: int, run: Callable[[Job], RolloutRow]
    ) -> None:
        self.flight = 2 * threads
        self._pool, self._run = pool, run

    def submit(self, job: Job) -> Future[RolloutRow]:
        return self._pool.submit(self._run, job)


@contextmanager
def thread_hands(
    runner: Runner, scorer: Scorer, profiles: tuple[Profile, ...], threads: int
) -> Iterator[Hands]:
    """Threads of this process."""
    with ThreadPoolExecutor(threads, thread_name_prefix="evaluate") as pool:
        yield _Threads(pool, threads, lambda job: carried_out(job, runner, scorer, profiles))


def roll_out(
    jobs: Sequence[Job],
    hands: Hands,
    log: RolloutLog,
    *,
    headline: Profile,
    progress: Callable[[Progress], None] | None = None,
    give_up: int = 0,
    abandon: Callable[[], None] | None = None,
) -> None:
    """Have jobs carried out; each row is in the log before the next one counts.

    An error of a rollout or of its scoring ends it: no further job starts, running ones end and are
    kept, then the error is raised.

    Args:
        jobs: what to do.
        hands: who does it.
        log: open; where rows go.
        headline: profile of the successes that `progress` is told.
        progress: called after each row.
        give_up: rows, or all jobs where there are fewer, that infrastructure may break one after
            the other while the log has no scored row; 0: any number.
        abandon: makes running rollouts end soon; called at Ctrl-C, after which those that end
            unscored are not kept: nobody waits minutes for a slow server.

    Raises:
        UpstreamError: that many were broken; says by what.
    """
    total = len(jobs)
    waiting = deque(jobs)
    running: set[Future[RolloutRow]] = set()
    ended: set[Future[RolloutRow]] = set()
    done = scored = successes = 0
    hopeless = 0 if log.any_scored else min(give_up, total)
    try:
        while waiting or running:
            while waiting and len(running) < hands.flight:
                running.add(hands.submit(waiting.popleft()))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            while ended:
                row = ended.pop().result()
                log.append(row)
                done += 1
                scored += row.score.status == "scored"
                successes += row.score.success.get(headline, False)
                if progress:
                    progress(Progress(done=done, total=total, scored=scored, successes=successes))
                if hopeless and not scored and done >= hopeless:
                    raise _nobody(row.score.fault, done)
    except BaseException as error:
        waiting.clear()
        stopped = isinstance(error, KeyboardInterrupt) and abandon is not None
        _keep_the_rest(running | ended, log, abandon if stopped else None)
        raise


def _nobody(fault: Fault | None, broken: int) -> UpstreamError:
    """What is said when infrastructure broke all that was tried."""
    told = f"{fault.blame.value} {fault.code}: {bare(fault)}" if fault else "no fault was recorded"
    remedy = fault.remedy.removesuffix(", then resume the run") if fault else ""
    return UpstreamError(
        f"nothing could be scored: infrastructure broke the first {broken} rollouts; {told}",
        code=fault.code if fault else FaultCode.run_interrupted,
        remedy=f"{remedy or 'mend it'}, then run the same command again: what was broken gets "
        "another attempt",
    )


def _keep_the_rest(
    running: set[Future[RolloutRow]], log: RolloutLog, abandon: Callable[[], None] | None
) -> None:
    for future in running:
        future.cancel()
    if abandon is not None:
        abandon()
    for future in running:
        if not future.cancelled() and future.exception() is None:
            row = future.result()
            if abandon is None or row.score.status == "scored":
                log.append(row)


def carried_out(
    job: Job, runner: Runner, scorer: Scorer, profiles: tuple[Profile, ...]
) -> RolloutRow:
    """One rollout with its verdicts."""
    trajectory = runner(job.problem, job.seed, job.attempt)
    verdicts = tuple(scorer(job.problem, trajectory, profile) for profile in profiles)
    return RolloutRow(
        sample=job.sample,
        trajectory=trajectory,
        verdicts=verdicts,
        score=score_of(job, trajectory, verdicts),
    )


def score_of(job: Job, trajectory: Trajectory, verdicts: Sequence[OutcomeVerdict]) -> RolloutScore:
    """The numbers of one rollout; unscored as soon as one profile could not be scored."""
    unscored = any(verdict.status == "unscored" for verdict in verdicts)
    oro = next((verdict for verdict in verdicts if verdict.profile == "oro"), verdicts[0])
    return RolloutScore(
        problem_id=job.problem.problem_id,
        sample=job.sample,
        attempt=job.attempt,
        trajectory_id=trajectory.trajectory_id,
        status="unscored" if unscored else "scored",
        success={verdict.profile: verdict.success and not unscored for verdict in verdicts},
        rule=float(oro.scores.get("rule", 0.0)),
        behaviour=behaviour_of(trajectory),
        seconds=trajectory.duration_s,
        fault=_fault(trajectory, verdicts) if unscored else None,
    )


def _fault(trajectory: Trajectory, verdicts: Sequence[OutcomeVerdict]) -> Fault | None:
    found = (trajectory.fault, *(verdict.fault for verdict in verdicts))
    return next((each for each in found if each is not None), None)
