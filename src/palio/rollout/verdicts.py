"""Every run, whoever recorded it, gets its verdicts from one panel, on as many cores as asked.

`Panel` holds what judging needs (problems, products, encoder, reasoning judge) and is sent to each
worker once. A stream of trajectories goes in and the same stream comes out in the same order with
verdicts; only a few chunks are ever in flight.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from palio.judging.answers import recommended
from palio.judging.encoders import TitleEncoder, default_encoder
from palio.judging.evidence import EvidenceJudge
from palio.judging.outcome import OutcomeScorer
from palio.judging.richness import richness_verdict
from palio.judging.store import VERDICTS, append_verdicts
from palio.records import (
    PROFILES,
    InputError,
    JudgeId,
    OutcomeVerdict,
    Problem,
    Product,
    Profile,
    ReasoningVerdict,
    Record,
    RichnessVerdict,
    Trajectory,
    Verdict,
    to_json,
)
from palio.records.base import CanonicalRecord
from palio.rollout.workers import hear_interrupts, starting_workers

CHUNK = 64
"""Trajectories a task: about 1 MB of JSON, so that the queue costs under 1 % of the judging."""

Unknown = Literal["refuse", "leave"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class ReasoningJudge(Protocol):
    """What judges reasoning: the evidence judge, or one that asks a model.

    It must be picklable to judge in several processes, and safe to call from several threads to
    judge in several threads.
    """

    @property
    def judge_id(self) -> JudgeId:
        """The identity that stands in its verdicts."""
        ...

    def verdict(self, trajectory: Trajectory) -> ReasoningVerdict:
        """The verdict on one trajectory; "unjudged" when there is none, never an exception."""
        ...


class Verdicts(Record, frozen=True):
    """What was judged of one trajectory.

    Attributes:
        outcomes: one verdict a profile.
        reasoning: None also where thinking was written after the fact, which is never judged.
        unresolved: recommended ids that the catalogue does not have; None = no catalogue at hand.
    """

    outcomes: tuple[OutcomeVerdict, ...] = ()
    reasoning: ReasoningVerdict | None = None
    richness: RichnessVerdict | None = None
    unresolved: tuple[str, ...] | None = None

    def all(self) -> tuple[Verdict, ...]:
        """All verdicts that there are, outcomes first."""
        return (*self.outcomes, *(v for v in (self.reasoning, self.richness) if v is not None))


class Judged(CanonicalRecord, frozen=True):
    """One trajectory with its verdicts: what standings and corpora are made from."""

    trajectory: Trajectory
    verdicts: Verdicts = Verdicts()

    def success(self, profile: str) -> bool:
        """Whether it succeeded under `profile`; False where there is no such verdict."""
        return any(v.success for v in self.verdicts.outcomes if v.profile == profile)

    def outcome(self, profile: str) -> OutcomeVerdict:
        """The first verdict under `profile`.

        Raises:
            InputError: there is none.
        """
        for verdict in self.verdicts.outcomes:
            if verdict.profile == profile:
                return verdict
        where = self.trajectory.trajectory_id
        raise InputError(f"the run has no outcome verdict under {profile}", where=where)


class Panel:
    """Everything that judges a trajectory, in one picklable object.

    Args:
        problems: the problems that trajectories refer to by id, each within its catalogue.
        catalogues: catalogue id -> its products. A run that names no catalogue, as foreign traces
            do, is one of its problem's catalogue, or of the only one given.
        profiles: outcome profiles to judge under.
        encoder: title similarity; None = the offline default.
        judge: judges the reasoning; None = the evidence judge. Salvaged runs are never shown to it.
        unknown: a run of another problem or catalogue is refused by an error, or left without
            outcome and resolution check, which a corpus counts.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        catalogues: Mapping[str, Mapping[str, Product]],
        profiles: Iterable[Profile] = PROFILES,
        encoder: TitleEncoder | None = None,
        judge: ReasoningJudge | None = None,
        unknown: Unknown = "leave",
    ) -> None:
        self.catalogues = catalogues
        self.profiles = tuple(profiles)
        self.judge: ReasoningJudge = judge or EvidenceJudge()
        self._problems = {(problem.catalogue, problem.problem_id): problem for problem in problems}
        # the first wins, as in a suite; asked only by runs that name no catalogue
        self._by_id: dict[str, Problem] = {}
        for problem in self._problems.values():
            self._by_id.setdefault(problem.problem_id, problem)
        self._encoder = encoder or default_encoder()
        self._scorers: dict[str, OutcomeScorer] = {}
        self._unknown = unknown

    def verdicts(self, trajectory: Trajectory) -> Verdicts:
        """Judge one trajectory.

        Raises:
            InputError: it is of an unknown problem or catalogue, and those are refused.
        """
        problem, name, products = self._facts(trajectory)
        unresolved = None
        if products is not None:
            unresolved = tuple(one for one in recommended(trajectory) if one not in products)
        return Verdicts(
            outcomes=self._outcomes(trajectory, problem, name, products),
            reasoning=None if trajectory.salvaged else self.judge.verdict(trajectory),
            richness=richness_verdict(trajectory),
            unresolved=unresolved,
        )

    def outcomes(self, trajectory: Trajectory) -> tuple[OutcomeVerdict, ...]:
        """The outcome alone, one verdict a profile; () where it cannot be told.

        Raises:
            InputError: see `verdicts`.
        """
        return self._outcomes(trajectory, *self._facts(trajectory))

    def _facts(
        self, trajectory: Trajectory
    ) -> tuple[Problem | None, str, Mapping[str, Product] | None]:
        """Its problem, and the name and the products of its catalogue."""
        problem = self._problem(trajectory)
        name = self._catalogue(trajectory, problem)
        products = self.catalogues.get(name)
        if self._unknown == "refuse" and (problem is None or products is None):
            raise InputError(
                f"the {'catalogue' if products is None else 'problem'} of this run is not among "
                "those given",
                where=f"run {trajectory.trajectory_id}: {trajectory.problem_id} in {name}",
                remedy="name the suite and the catalogues that it was made with",
            )
        return problem, name, products

    def _outcomes(
        self,
        trajectory: Trajectory,
        problem: Problem | None,
        name: str,
        products: Mapping[str, Product] | None,
    ) -> tuple[OutcomeVerdict, ...]:
        if problem is None or products is None:
            return ()
        scorer = self._scorer(name, products)
        return tuple(scorer.verdict(problem, trajectory, profile) for profile in self.profiles)

    def _problem(self, trajectory: Trajectory) -> Problem | None:
        if not trajectory.catalogue:
            return self._by_id.get(trajectory.problem_id)
        known = self._problems.get((trajectory.catalogue, trajectory.problem_id))
        return known or self._problems.get(("", trajectory.problem_id))

    def _catalogue(self, trajectory: Trajectory, problem: Problem | None) -> str:
        name = trajectory.catalogue or (problem.catalogue if problem else "")
        if not name and problem is not None and len(self.catalogues) == 1:
            return next(iter(self.catalogues))
        return name

    def _scorer(self, catalogue: str, products: Mapping[str, Product]) -> OutcomeScorer:
        if catalogue not in self._scorers:
            self._scorers[catalogue] = OutcomeScorer(products, self._encoder)
        return self._scorers[catalogue]


def judge_all(
    trajectories: Iterable[Trajectory],
    panel: Panel,
    *,
    workers: int = 1,
    threads: int = 1,
    chunk: int = CHUNK,
) -> Iterator[Judged]:
    """Judge a stream, in its order.

    Args:
        trajectories: any stream; at most `2 * workers + 1` chunks of it are held at a time.
        panel: what judges.
        workers: processes; 1 judges in this process.
        threads: with 1 worker, runs judged at a time: for a judge that waits for a server.
        chunk: trajectories a task.

    Raises:
        InputError: a number below 1, or the panel refuses a run.
    """
    if min(workers, threads, chunk) < 1:
        raise InputError(f"workers {workers}, threads {threads}, chunk {chunk} must be at least 1")
    if workers == 1:
        yield from _threaded(trajectories, panel, threads)
        return
    stream = iter(trajectories)
    chunks = iter(lambda: list(islice(stream, chunk)), [])
    # spawn: forking a process that runs a broker thread or torch can deadlock the child
    context = multiprocessing.get_context("spawn")
    with starting_workers():
        pool = context.Pool(workers, initializer=_take_panel, initargs=(panel,))

    def put(held: list[Trajectory]) -> Callable[[], list[Judged]]:
        sent = pool.apply_async(_judge_chunk, (to_json(held),))
        return lambda: _paired(held, sent.get())

    with pool:
        for judged in _in_flight(chunks, put, 2 * workers):
            yield from judged
        pool.close()
        pool.join()


def _threaded(trajectories: Iterable[Trajectory], panel: Panel, threads: int) -> Iterator[Judged]:
    def judge(trajectory: Trajectory) -> Judged:
        return Judged(trajectory=trajectory, verdicts=panel.verdicts(trajectory))

    if threads == 1:
        yield from map(judge, trajectories)
        return
    with ThreadPoolExecutor(threads) as pool:

        def put(trajectory: Trajectory) -> Callable[[], Judged]:
            return pool.submit(judge, trajectory).result

        yield from _in_flight(trajectories, put, 2 * threads)


def _in_flight(
    tasks: Iterable[_Task], put: Callable[[_Task], Callable[[], _Result]], most: int
) -> Iterator[_Result]:
    """Results in the order of their tasks, with at most `most` tasks put and not yet awaited."""
    waiting: deque[Callable[[], _Result]] = deque()
    for task in tasks:
        waiting.append(put(task))
        if len(waiting) > most:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def _paired(held: list[Trajectory], result: bytes) -> list[Judged]:
    found = msgspec.json.decode(result, type=list[Verdicts])
    return [
        Judged(trajectory=trajectory, verdicts=verdicts)
        for trajectory, verdicts in zip(held, found, strict=True)
    ]


_panel: Panel | None = None
"""The panel of this worker process; set once by the pool's initialiser."""


def _take_panel(panel: Panel) -> None:
    global _panel
    hear_interrupts()
    _panel = panel


def _judge_chunk(data: bytes) -> bytes:
    assert _panel is not None, "the pool's initialiser has run"
    trajectories = msgspec.json.decode(data, type=list[Trajectory])
    return to_json([_panel.verdicts(trajectory) for trajectory in trajectories])


def keep_verdicts(folder: Path, judged: Iterable[Judged]) -> int:
    """Append the verdicts to the run folder's verdict file; how many were new."""
    return append_verdicts(
        folder / VERDICTS, (verdict for run in judged for verdict in run.verdicts.all())
    )
