"""Rollouts of a policy in the world: the race's harness, broker and scorer, kept as tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import msgspec

from palio.agents.spec import policy_agent
from palio.broker.first_request import FirstRequest
from palio.broker.limits import Limits
from palio.judging.outcome import OutcomeScorer
from palio.records import (
    FaultCode,
    PalioError,
    Problem,
    Profile,
    Record,
    Trajectory,
    UpstreamError,
    digest,
)
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.codec import Codec
from palio.train.ground import Ground
from palio.train.rl.audit import Audit, audit_of
from palio.train.rl.rewards import (
    TeacherPolicy,
    on_policy_credits,
    outcome_reward,
)
from palio.train.rl.sampler import Sampler
from palio.train.rl.tokens import Span, TokenLog
from palio.world.tools import Toolbox


@dataclass(frozen=True)
class Rollout:
    """One rollout as a trainer needs it.

    Attributes:
        key: the problem, or the teacher's step; rollouts of one key are a group.
        prompt: ids up to the opening of the first turn.
        completion: all ids after it.
        mask: which of these the model sampled.
        logprobs: of these at sampling time; 0 for the others.
        spans: places of each turn's sampled tokens in `completion`.
        outcome: reward of the whole; None: unscored.
        credits: reward of each turn in [0, 1], None for one that the teacher did not answer for;
            None: no teacher was asked.
        success: strict success.
        audit: counts; None in prefix mode, where nothing is carried out.
        trajectory: the record; None in prefix mode.
        asked: turns that make a call, of which the teacher is asked.
        fault: why the teacher did not answer for all of them; in prefix mode why there is no
            outcome.
    """

    key: str
    prompt: list[int]
    completion: list[int]
    mask: list[bool]
    logprobs: list[float]
    spans: tuple[Span, ...]
    outcome: float | None
    credits: tuple[float | None, ...] | None
    success: bool
    audit: Audit | None = None
    trajectory: Trajectory | None = None
    asked: int = 0
    fault: PalioError | None = None


class Loss(NamedTuple):
    """Why a rollout could not be scored, as plain data that processes can tell each other."""

    what: str
    remedy: str
    code: int

    @classmethod
    def of(cls, rollout: Rollout) -> Loss | None:
        """Of one rollout; None: it was scored."""
        if rollout.outcome is not None:
            return None
        fault = rollout.trajectory.fault if rollout.trajectory else rollout.fault
        if fault is None:
            return cls("", "", FaultCode.upstream_unreachable)
        code = getattr(fault, "code", FaultCode.upstream_unreachable)
        return cls(fault.what, fault.remedy, int(code))


def checked(
    rollouts: Sequence[Rollout],
    end: int,
    gather: Callable[[list[Loss | None]], list[Loss | None]] = list,
) -> list[Rollout]:
    """Rollouts that a trainer can pad; one without a turn becomes an end token that nobody trains.

    Args:
        rollouts: this process's.
        end: the end token.
        gather: what this process says of its rollouts -> what all of them say of theirs: one whose
            whole share is unscored goes on with the others. By default there is one process.

    Raises:
        UpstreamError: not one of them could be scored, so there is nothing to learn from; in all
            processes at once.
    """
    told = gather([Loss.of(rollout) for rollout in rollouts])
    lost = [loss for loss in told if loss is not None]
    if len(lost) == len(told):
        first = next((loss for loss in lost if loss.what), Loss("", "", 0))
        raise UpstreamError(
            f"none of {len(lost)} rollouts could be scored: {first.what or 'there is no record'}",
            code=first.code or FaultCode.upstream_unreachable,
            remedy=first.remedy or "see that the sampler's server answers",
        )
    return [each if each.completion else _silent(each, end) for each in rollouts]


def _silent(rollout: Rollout, end: int) -> Rollout:
    prompt = rollout.prompt or [end]
    return replace(rollout, prompt=prompt, completion=[end], mask=[False], logprobs=[0.0], spans=())


class Roller(Protocol):
    """Makes rollouts; what they are of is its own business."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that can be rolled out."""

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        """One rollout for each key and seed, in order."""


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """How rollouts are made.

    Attributes:
        max_tokens: of one turn.
        longest: tokens of a conversation; a rollout that needs more ends there.
        profile: whose strict success is the outcome.
        brevity: see `rewards.outcome_reward`.
        threads: rollouts in flight; results do not depend on it with our engine.
        seconds: wall clock of a rollout.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 160
    longest: int = 1200
    profile: Profile = "strict"
    brevity: float = 0.0
    threads: int = 64
    seconds: float = 300.0

    @classmethod
    def of(cls, settings: Record, **more: int) -> Play:
        """What a stage's settings say of it by the same names, and what is said besides."""
        named = {n: getattr(settings, n) for n in cls.__struct_fields__ if hasattr(settings, n)}
        return cls(**{**named, **more})


class WorldRoller:
    """Whole rollouts through the broker.

    One whose first prompt already has more than `longest` tokens is unscored: the model has not
    been asked.

    Args:
        problems: what is asked.
        ground: worlds and scorer's encoder.
        codec: the policy's tokens.
        teacher: asked for credits on the student's own history; None: outcome only.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        ground: Ground,
        codec: Codec,
        play: Play,
        teacher: TeacherPolicy | None = None,
    ) -> None:
        self._problems = {problem.problem_id: problem for problem in problems}
        self._ground, self._codec, self._play, self._teacher = ground, codec, play, teacher
        self._driver = InlineDriver()
        sampling = {"temperature": play.temperature, "top_p": play.top_p}
        self._agent = policy_agent("student", "student", sampling=sampling)
        self._scorers: dict[str, OutcomeScorer] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """Problem ids."""
        return tuple(self._problems)

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        """See `Roller`."""
        for name in {self._problems[key].catalogue for key in keys} - self._scorers.keys():
            products = self._ground.worlds[name].catalogue.products
            self._scorers[name] = OutcomeScorer(products, self._ground.encoder)
        with ThreadPoolExecutor(self._play.threads, thread_name_prefix="rollout") as pool:
            return list(pool.map(lambda key, seed: self._one(key, seed, sampler), keys, seeds))

    def _one(self, key: str, seed: int, sampler: Sampler) -> Rollout:
        problem, play = self._problems[key], self._play
        world = self._ground.worlds[problem.catalogue]
        log = TokenLog(sampler, self._codec, max_tokens=play.max_tokens, longest=play.longest)
        trajectory = run_problem(
            self._agent,
            problem,
            world,
            driver=self._driver,
            upstream=FirstRequest(log),
            limits=Limits(seconds=play.seconds),
            seed=seed,
            tools=self._ground.tools,
        )
        verdict = self._scorers[problem.catalogue].verdict(problem, trajectory, play.profile)
        audit = audit_of(trajectory, wanted=max(1, len(problem.rewards)), cut=log.cut)
        reward = outcome_reward(verdict, turns=audit.turns, brevity=play.brevity)
        if (
            len(log.turns) != audit.turns
        ):  # the record lacks a turn: a fault that is not the model's
            reward = None
        rollout = rollout_of(key, log, reward, success=bool(reward))
        rollout = replace(rollout, audit=audit, trajectory=trajectory)
        return self._credited(rollout, Toolbox(world))

    def _credited(self, rollout: Rollout, toolbox: Toolbox) -> Rollout:
        """With the teacher's credits; where it does not answer there is none, and no 0 either."""
        if self._teacher is None or rollout.outcome is None or rollout.trajectory is None:
            return rollout
        found = on_policy_credits(rollout.trajectory, self._teacher, toolbox)
        return replace(rollout, credits=found.earned, asked=found.asked, fault=found.fault)


def rollout_of(key: str, log: TokenLog, outcome: float | None, *, success: bool) -> Rollout:
    """A log as prompt and completion."""
    cut = log.prompt
    return Rollout(
        key=key,
        prompt=log.ids[:cut],
        completion=log.ids[cut:],
        mask=log.trained[cut:],
        logprobs=log.logprobs[cut:],
        spans=tuple(Span(start - cut, end - cut) for start, end in log.turns),
        outcome=outcome,
        credits=None,
        success=success,
    )


def rollout_seed(seed: int, step: int, key: str, number: int) -> int:
    """Seed of one rollout: the same in a resumed run, whatever ran beside it."""
    return int(digest([seed, step, key, number])[7:15], 16) & 0x7FFFFFFF
