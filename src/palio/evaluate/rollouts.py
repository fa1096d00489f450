"""Scored rollouts of one evaluation: appended as they end, never lost, never run twice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from palio.evaluate.behaviour import behaviour_of
from palio.evaluate.results import RolloutScore
from palio.records import (
    InputError,
    OutcomeVerdict,
    Problem,
    Profile,
    Record,
    ResumeError,
    Trajectory,
    canonical_json,
    digest,
    from_json,
    to_json,
)
from palio.world.artefacts import replacing

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

    A half-written last line, left by a kill, is cut off when the log is opened.

    Args:
        folder: holds `rollouts.jsonl` and `evaluation.json`; made when missing.
        identity: everything that decides the results, as plain JSON data.

    Raises:
        ResumeError: the folder belongs to another evaluation; names the keys that differ.
        InputError: a complete line is not a rollout.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.path = folder / ROWS
        folder.mkdir(parents=True, exist_ok=True)
        _pin(folder / IDENTITY, identity)
        self.scores: dict[tuple[str, int], RolloutScore] = {}
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        if self.path.exists():
            self._recover()

    def __enter__(self) -> RolloutLog:
        self._file = self.path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()
        self._file = None

    def append(self, row: RolloutRow) -> None:
        """Write one rollout; it is on the operating system's side when this returns."""
        if self._file is None:
            raise RuntimeError("the log is not open: use it in a with block")
        with self._lock:
            self._file.write(to_json(row) + b"\n")
            self._file.flush()
            self.scores[row.score.problem_id, row.sample] = row.score

    def _recover(self) -> None:
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                row = from_json(line, _Head, where=f"{self.path}:{number}")
                self.scores[row.score.problem_id, row.sample] = row.score
                whole += len(line)
        if whole < self.path.stat().st_size:
            with self.path.open("r+b") as file:
                file.truncate(whole)


class _Head(Record, frozen=True):
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
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield from_json(line, RolloutRow, where=f"{path}:{number}")


def read_identity(folder: Path) -> dict[str, Any]:
    """What an evaluation folder says it belongs to.

    Raises:
        InputError: there is no evaluation, or the file is not JSON.
    """
    path = folder / IDENTITY
    if not path.is_file():
        raise _no_evaluation(folder)
    return _decoded(path)


def _no_evaluation(folder: Path) -> InputError:
    return InputError(
        "holds no evaluation", where=str(folder), remedy="`palio eval run --out` makes one"
    )


def _decoded(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(f"not an evaluation's identity: {error}", where=str(path)) from error


def _pin(path: Path, identity: dict[str, Any]) -> None:
    if not path.exists():
        with replacing(path) as file:
            file.write(canonical_json(identity) + b"\n")
        return
    then = _decoded(path)
    now = msgspec.json.decode(canonical_json(identity))
    keys = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    if keys:
        parts = [f"{key}: {inner}" for key in keys if (inner := _inner(then, now, key))]
        detail = f" ({'; '.join(parts)})" if parts else ""
        raise ResumeError(
            f"this folder belongs to another evaluation: {', '.join(keys)} differ{detail}",
            where=str(path.parent),
            remedy="choose another --out, or remove the folder to start afresh",
        )


def _inner(then: dict[str, Any], now: dict[str, Any], key: str) -> str:
    """Which members of a key differ, where it has members; "settings" alone says little."""
    one, other = then.get(key), now.get(key)
    if not isinstance(one, dict) or not isinstance(other, dict):
        return ""
    return ", ".join(k for k in sorted(one.keys() | other.keys()) if one.get(k) != other.get(k))


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
) -> None:
    """Have jobs carried out; each row is in the log before the next one counts.

    An error of a rollout or of its scoring ends it: no further job starts, running ones end and are
    kept, then the error is raised.
    """
    total = len(jobs)
    waiting = deque(jobs)
    running: set[Future[RolloutRow]] = set()
    ended: set[Future[RolloutRow]] = set()
    done = scored = successes = 0
    with log:
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
                        progress(
                            Progress(done=done, total=total, scored=scored, successes=successes)
                        )
        except BaseException:
            waiting.clear()
            _keep_the_rest(running | ended, log)
            raise


def _keep_the_rest(running: set[Future[RolloutRow]], log: RolloutLog) -> None:
    for future in running:
        future.cancel()
    for future in running:
        if not future.cancelled() and future.exception() is None:
            log.append(future.result())


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
    )
