"""Training problems through the broker, k times each: scored, kept by token, never run twice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from palio.agents.spec import AgentSpec, policy_agent
from palio.broker.first_request import FirstRequest
from palio.broker.limits import Limits
from palio.broker.upstream import Upstream, scoped
from palio.judging.outcome import OutcomeScorer
from palio.records import (
    FaultCode,
    Problem,
    Profile,
    Record,
    Trajectory,
    UpstreamError,
    digest,
    to_json,
)
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.ground import Ground
from palio.train.settings import Sampling
from palio.train.tokenizer import Encoded
from palio.world.appended import mend_end, whole_records

FILE = "rollouts.jsonl"
SETTLED = "rollouts.settled"
"""In a stage's folder: training on its rollouts has begun, so none is run again."""
DEAD = 16
"""When this many rollouts in a row are unscored and the stage has no scored one, nobody answers."""
OWN = (
    FaultCode.upstream_server_error,
    FaultCode.upstream_garbage,
    FaultCode.upstream_truncated,
)
"""Faults that may be a conversation's own; that nobody is there says nothing of any of them."""
_WAVES = 4
"""Later on it takes this many for each that may be in flight: a server may start anew meanwhile."""


class Turn(Record, frozen=True):
    """One completion as token ids: what the model read and what it sampled."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]


class Rollout(Record, frozen=True):
    """One scored rollout of a training problem.

    Attributes:
        reward: mean rule score in [0, 1].
        success: under the profile that the stage asked for.
        scored: False where infrastructure failed; such a rollout counts nowhere.
        turns: token ids of every completion; () where the server does not tell them.
    """

    problem_id: str
    kind: str
    sample: int
    reward: float
    success: bool
    scored: bool
    trajectory: Trajectory
    turns: tuple[Turn, ...] = ()

    def encoded(self) -> Encoded | None:
        """The whole rollout as the very ids that were read and sampled; None where they are no row.

        A row needs every prompt to begin with the prompt and the sample before it. Where a server
        cut the conversation or wrote it anew, training on one row would train on ids that the
        model never saw.
        """
        ids: list[int] = []
        trained: list[bool] = []
        for turn in self.turns:
            if list(turn.prompt[: len(ids)]) != ids:
                return None
            ids += turn.prompt[len(ids) :]
            trained += [False] * (len(ids) - len(trained))
            ids += turn.sampled
            trained += [True] * len(turn.sampled)
        return Encoded(ids, trained) if ids else None


class Tape:
    """One rollout's model: passes requests on and keeps the token ids of every answer.

    Args:
        upstream: who answers.
        ids: whether to ask for token ids; many servers refuse a request that asks.
    """

    def __init__(self, upstream: Upstream, *, ids: bool = True) -> None:
        self._upstream = FirstRequest(upstream)
        self.turns: list[Turn] = []
        self.whole = self._ids = ids

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One completion; what the server says of tokens stays here."""
        if not self._ids:
            return self._upstream.complete(body)
        answer = self._upstream.complete({**body, "return_token_ids": True})
        choices = answer.get("choices")
        told = choices[0] if isinstance(choices, list) and choices else {}
        prompt = answer.pop("prompt_token_ids", None) or told.pop("prompt_token_ids", None)
        sampled = told.pop("token_ids", None)
        if prompt and sampled:
            self.turns.append(Turn(prompt=tuple(prompt), sampled=tuple(sampled)))
        else:
            self.whole = False
        return answer


class Collected(NamedTuple):
    """All rollouts of a stage, and how many could not be scored."""

    rollouts: list[Rollout]
    unscored: int


def collect(
    ground: Ground,
    upstream: Upstream,
    sampling: Sampling,
    folder: Path,
    *,
    name: str,
    seed: int,
    report: Callable[[float, str], None],
    ids: bool = True,
) -> Collected:
    """Roll out and score; what `folder` already holds is not run again, nor anything once settled.

    Args:
        ground: training problems.
        upstream: who answers.
        sampling: how many and how.
        folder: holds `rollouts.jsonl`.
        name: of the agent in the records.
        seed: every rollout's own seed is derived from it, the problem and the sample's number.
        report: (share done, note).
        ids: whether the token ids are wanted, see `Tape`.

    Raises:
        UpstreamError: nobody answers, or nobody any more.
    """
    problems = ground.evenly(sampling.problems, f"rollouts-{seed}")
    agent = policy_agent(name, sampling.model or name, sampling=sampling.parameters())
    runner = _Runner(ground, upstream, sampling, agent, seed, ids=ids)
    folder.mkdir(parents=True, exist_ok=True)
    settled = (folder / SETTLED).exists()
    with _Log(folder / FILE) as log:
        jobs = [
            (problem, sample)
            for problem in problems
            for sample in range(sampling.samples)
            if not settled and (problem.problem_id, sample) not in log.done
        ]
        # Those that failed come last: some fail each time, and are no reason to try no other one.
        jobs.sort(key=lambda job: (job[0].problem_id, job[1]) in log.failed)
        _run_all(jobs, runner, log, sampling.threads, report)
    rollouts = read_rollouts(folder)
    unscored = sum(not each.scored for each in rollouts)
    if rollouts and unscored == len(rollouts):
        raise _nobody(unscored, rollouts[-1])
    return Collected(rollouts, unscored)


def settle(folder: Path) -> None:
    """From here on the stage trains on the rollouts that it has, also after a kill.

    One that could not be scored would else be run again, and another row stand under a saved state.
    """
    (folder / SETTLED).touch()


def read_rollouts(folder: Path) -> list[Rollout]:
    """Every rollout of a stage, by problem and sample, whatever order they ended in.

    One that could not be scored was run again when the stage went on: the last one counts.
    """
    last = {(each.problem_id, each.sample): each for each in whole_records(folder / FILE, Rollout)}
    return [last[key] for key in sorted(last)]


def any_scored(folder: Path) -> bool:
    """Whether a stage has a scored rollout already."""
    return any(head.scored for head in whole_records(folder / FILE, _Head))


def rollout_seed(base: int, problem_id: str, sample: int) -> int:
    """A digest, so that neither order nor subset of problems changes it."""
    return int(digest([base, problem_id, sample])[7:15], 16) & 0x7FFFFFFF


class _Runner:
    def __init__(
        self,
        ground: Ground,
        upstream: Upstream,
        sampling: Sampling,
        agent: AgentSpec,
        seed: int,
        *,
        ids: bool,
    ) -> None:
        self._ground, self._upstream, self._agent, self._seed = ground, upstream, agent, seed
        self._ids = ids
        self._profile: Profile = sampling.profile
        self._limits = Limits(seconds=sampling.seconds)
        self._driver = InlineDriver()
        self._scorers: dict[str, OutcomeScorer] = {}
        self._lock = threading.Lock()

    def __call__(self, problem: Problem, sample: int) -> Rollout:
        run = f"{problem.problem_id}/{sample}"
        tape = Tape(scoped(self._upstream, run), ids=self._ids)
        record = run_problem(
            self._agent,
            problem,
            self._ground.worlds[problem.catalogue],
            driver=self._driver,
            upstream=tape,
            limits=self._limits,
            seed=rollout_seed(self._seed, problem.problem_id, sample),
            tools=self._ground.tools,
        )
        verdict = self._scorer(problem.catalogue).verdict(problem, record, self._profile)
        scored = verdict.status == "scored"
        return Rollout(
            problem_id=problem.problem_id,
            kind=problem.kind,
            sample=sample,
            reward=float(verdict.scores.get("rule", 0.0)) if scored else 0.0,
            success=verdict.success and scored,
            scored=scored,
            trajectory=record,
            turns=tuple(tape.turns) if tape.whole else (),
        )

    def _scorer(self, catalogue: str) -> OutcomeScorer:
        with self._lock:
            if catalogue not in self._scorers:
                products = self._ground.worlds[catalogue].catalogue.products
                self._scorers[catalogue] = OutcomeScorer(products, self._ground.encoder)
            return self._scorers[catalogue]


class _Log:
    """Append-only; a line torn by a kill is cut off when the log is opened.

    Attributes:
        done: problem and sample of what is scored.
        failed: those of the rest -> the code of the fault, None where the record has none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: set[tuple[str, int]] = set()
        self.failed: dict[tuple[str, int], int | None] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> _Log:
        for head in whole_records(self._path, _Head):
            key, fault = (head.problem_id, head.sample), head.trajectory.fault
            if head.scored:
                self.done.add(key)
            else:
                self.failed[key] = fault.code if fault else None
        mend_end(self._path)
        self._file = self._path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None, "opened by __enter__"
        self._file.close()

    def append(self, rollout: Rollout) -> None:
        """It is on the operating system's side when this returns."""
        assert self._file is not None, "opened by __enter__"
        self._file.write(to_json(rollout) + b"\n")
        self._file.flush()

    def expected(self, rollout: Rollout) -> bool:
        """Whether a rollout could not be scored as an earlier run already found."""
        key, fault = (rollout.problem_id, rollout.sample), rollout.trajectory.fault
        code = fault.code if fault else None
        return not rollout.scored and code in OWN and self.failed.get(key) == code


class _Code(Record, frozen=True):
    code: int


class _Cause(Record, frozen=True):
    fault: _Code | None = None


class _Head(Record, frozen=True):
    """What is read of a rollout to go on: the record itself is long."""

    problem_id: str
    sample: int
    scored: bool
    trajectory: _Cause = _Cause()


def _run_all(
    jobs: Sequence[tuple[Problem, int]],
    runner: _Runner,
    log: _Log,
    threads: int,
    report: Callable[[float, str], None],
) -> None:
    """Each rollout is in the log before the next one counts; an error stops the pool.

    One that a server that once answered cannot serve, e.g. a prompt that is too long for it, fails
    in every run of the stage. It says nothing of whether anybody answers any more.
    """
    waiting = deque(jobs)
    running: set[Future[Rollout]] = set()
    done = successes = silent = 0
    scored = len(log.done)
    with ThreadPoolExecutor(threads, thread_name_prefix="rollout") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < 2 * threads:
                    running.add(pool.submit(runner, *waiting.popleft()))
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    rollout = future.result()
                    scored += rollout.scored
                    if not (scored and log.expected(rollout)):
                        silent = 0 if rollout.scored else silent + 1
                    _someone_answers(rollout, silent, _WAVES * threads if scored else DEAD)
                    log.append(rollout)
                    done += 1
                    successes += rollout.success
                    report(done / len(jobs), f"{done:,} rollouts, {successes:,} successes")
        except BaseException:
            waiting.clear()
            for future in running:
                future.cancel()
            raise


def _someone_answers(rollout: Rollout, silent: int, most: int) -> None:
    if silent >= max(DEAD, most):
        raise _nobody(silent, rollout)


def _nobody(silent: int, last: Rollout) -> UpstreamError:
    """What is said when no rollout can be scored, or none any more."""
    fault = last.trajectory.fault
    why = f": {fault.what}" if fault else ""
    return UpstreamError(
        f"{silent} rollouts in a row could not be scored{why}",
        code=fault.code if fault else FaultCode.upstream_unreachable,
        remedy=(fault.remedy if fault else "")
        or "start the model's server, or correct its address in the recipe",
    )
