"""A trajectory and everything that is judged of it travel together; judging runs on every core.

`Panel` holds what judging needs (products, problems, encoder) and is sent to each worker once. A
stream of trajectories goes in and the same stream comes out in the same order with verdicts; only
a few chunks are ever in flight.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from multiprocessing.pool import AsyncResult, Pool

import msgspec

from palio.corpus.conversation import recommended
from palio.corpus.salvage import is_salvaged
from palio.judging.encoders import TitleEncoder, default_encoder
from palio.judging.evidence import EvidenceJudge
from palio.judging.outcome import OutcomeScorer
from palio.judging.richness import richness_verdict
from palio.records import (
    InputError,
    OutcomeVerdict,
    Problem,
    Product,
    Profile,
    ReasoningVerdict,
    Record,
    RichnessVerdict,
    Trajectory,
    to_json,
)
from palio.rollout.workers import hear_interrupts, starting_workers

CHUNK = 64
"""Trajectories a task: about 1 MB of JSON, so that the queue costs under 1 % of the judging."""


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


class Judged(Record, frozen=True):
    """One trajectory with its verdicts: what a corpus is built from."""

    trajectory: Trajectory
    verdicts: Verdicts = Verdicts()

    def success(self, profile: str) -> bool:
        """Whether it succeeded under `profile`; False where there is no such verdict."""
        return any(v.success for v in self.verdicts.outcomes if v.profile == profile)


class Panel:
    """Everything that judges a trajectory, in one picklable object.

    Args:
        problems: the problems that trajectories refer to by id.
        catalogues: catalogue id -> its products. A trajectory of another catalogue gets neither an
            outcome nor a resolution check, which the corpus counts as `outcome_missing`.
        profiles: outcome profiles to judge under.
        encoder: title similarity; None = the offline default.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        catalogues: Mapping[str, Mapping[str, Product]],
        profiles: tuple[Profile, ...] = ("oro", "strict"),
        encoder: TitleEncoder | None = None,
    ) -> None:
        self.problems = {problem.problem_id: problem for problem in problems}
        self.catalogues = catalogues
        self.profiles = profiles
        self._encoder = encoder or default_encoder()
        self._scorers: dict[str, OutcomeScorer] = {}
        self._judge = EvidenceJudge()

    def verdicts(self, trajectory: Trajectory) -> Verdicts:
        """Judge one trajectory."""
        problem = self.problems.get(trajectory.problem_id)
        products = self.catalogues.get(trajectory.catalogue)
        outcomes: tuple[OutcomeVerdict, ...] = ()
        unresolved = None
        if products is not None:
            unresolved = tuple(name for name in recommended(trajectory) if name not in products)
        if problem is not None and products is not None:
            scorer = self._scorer(trajectory.catalogue, products)
            outcomes = tuple(scorer.verdict(problem, trajectory, p) for p in self.profiles)
        return Verdicts(
            outcomes=outcomes,
            reasoning=None if is_salvaged(trajectory) else self._judge.verdict(trajectory),
            richness=richness_verdict(trajectory),
            unresolved=unresolved,
        )

    def _scorer(self, catalogue: str, products: Mapping[str, Product]) -> OutcomeScorer:
        if catalogue not in self._scorers:
            self._scorers[catalogue] = OutcomeScorer(products, self._encoder)
        return self._scorers[catalogue]


def judge_all(
    trajectories: Iterable[Trajectory], panel: Panel, *, workers: int = 1, chunk: int = CHUNK
) -> Iterator[Judged]:
    """Judge a stream, in its order.

    Args:
        trajectories: any stream; at most `2 * workers + 1` chunks of it are held at a time.
        panel: what judges.
        workers: processes; 1 judges in this process.
        chunk: trajectories a task.

    Raises:
        InputError: workers or chunk below 1.
    """
    if workers < 1 or chunk < 1:
        raise InputError(f"workers {workers} and chunk {chunk} must be at least 1")
    if workers == 1:
        for trajectory in trajectories:
            yield Judged(trajectory=trajectory, verdicts=panel.verdicts(trajectory))
        return
    stream = iter(trajectories)
    chunks = iter(lambda: list(islice(stream, chunk)), [])
    # spawn: forking a process that runs a broker thread or torch can deadlock the child
    context = multiprocessing.get_context("spawn")
    with starting_workers():
        pool = context.Pool(workers, initializer=_take_panel, initargs=(panel,))
    with pool:
        yield from _in_flight(pool, chunks, 2 * workers)
        pool.close()
        pool.join()


def _in_flight(pool: Pool, chunks: Iterator[list[Trajectory]], most: int) -> Iterator[Judged]:
    waiting: deque[tuple[list[Trajectory], AsyncResult[bytes]]] = deque()
    for held in chunks:
        waiting.append((held, pool.apply_async(_judge_chunk, (to_json(held),))))
        if len(waiting) > most:
            yield from _paired(*waiting.popleft())
    while waiting:
        yield from _paired(*waiting.popleft())


def _paired(held: list[Trajectory], result: AsyncResult[bytes]) -> Iterator[Judged]:
    found = msgspec.json.decode(result.get(), type=list[Verdicts])
    for trajectory, verdicts in zip(held, found, strict=True):
        yield Judged(trajectory=trajectory, verdicts=verdicts)


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
