"""Any policy on any problems through the same broker, harness and scorer as the race."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from palio.agents.spec import AgentSpec
from palio.broker.first_request import FirstRequest
from palio.broker.limits import Limits
from palio.broker.pin import ModelPin
from palio.broker.upstream import Upstream
from palio.evaluate.pin import MODEL, plain
from palio.evaluate.results import EvalResult, RolloutScore, summarise
from palio.evaluate.rollouts import (
    Hands,
    Job,
    Progress,
    RolloutLog,
    Runner,
    Scorer,
    open_jobs,
    roll_out,
    thread_hands,
)
from palio.judging.encoders import TitleEncoder
from palio.judging.outcome import OutcomeScorer
from palio.records import (
    ConfigError,
    InputError,
    OutcomeVerdict,
    Problem,
    Profile,
    Record,
    Trajectory,
    digest,
)
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.world.tools import FOUR_TOOLS, SEVEN_TOOLS
from palio.world.world import World


class EvalSettings(Record, frozen=True, omit_defaults=False):
    """How a policy is decoded and run.

    Attributes:
        samples: rollouts a problem; more than one needs a temperature above 0.
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1].
        seed: every sample's own seed is derived from it, the problem and the sample's number.
        threads: rollouts in flight; results do not depend on it as long as none of them meets the
            wall clock of its limits.
        profiles: outcome profiles; the first is the headline.
        tools: names of the tools that the harness offers; a call of another one is an error.
        limits: budget of each rollout.
        max_tokens: of one turn; 0: as many as the server allows.
    """

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    threads: int = 16
    profiles: tuple[Profile, ...] = ("oro", "strict")
    tools: tuple[str, ...] = SEVEN_TOOLS
    limits: Limits = Limits()
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.threads < 1:
            raise ConfigError("samples and threads must be at least 1")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise ConfigError("temperature must be a number >= 0 and top_p in (0, 1]")
        if self.seed < 0:
            raise ConfigError(f"the seed {self.seed} is negative", remedy="choose 0 or more")
        if self.temperature == 0 and self.samples > 1:
            raise ConfigError(
                f"{self.samples} greedy samples a problem are copies of one",
                remedy="set a temperature above 0 (--temperature 1.0)",
            )


GREEDY = EvalSettings()
HARNESSES = {"4": FOUR_TOOLS, "7": SEVEN_TOOLS}
"""The harnesses that published numbers were made with, by how many tools they offer."""


def harness_tools(named: str) -> tuple[str, ...]:
    """The tools of a harness: "4", "7", or names of the seven with commas between, in any order.

    Raises:
        ConfigError: a name is none of the seven, or the harness could not answer or not end.
    """
    if named.strip() in HARNESSES:
        return HARNESSES[named.strip()]
    names = {name.strip() for name in named.split(",")} - {""}
    tools = tuple(name for name in SEVEN_TOOLS if name in names)
    unknown = sorted(names - {*tools})
    if unknown or not tools:
        raise ConfigError(
            f"there is no tool {(unknown or [named])[0]!r} to offer",
            remedy=f"4, 7, or some of {', '.join(SEVEN_TOOLS)}",
        )
    missing = [name for name in ("recommend_product", "terminate") if name not in tools]
    if missing:
        raise ConfigError(
            f"a harness without {missing[0]} cannot {_NEEDED[missing[0]]}",
            remedy=f"add {' and '.join(missing)} to the tools",
        )
    return tools


_NEEDED = {"recommend_product": "answer", "terminate": "end"}


def sampled(k: int, *, temperature: float = 1.0, seed: int = 0, threads: int = 16) -> EvalSettings:
    """Settings of k samples a problem."""
    return EvalSettings(samples=k, temperature=temperature, seed=seed, threads=threads)


@dataclass(frozen=True)
class Policy:
    """A model behind the one harness.

    Attributes:
        name: what tables and charts call it, e.g. "after SFT".
        spec: the harness and the model's name, from `palio.agents.spec.policy_agent`.
        upstream: what answers chat completions: an Engine, a scripted model, an HTTP endpoint.
        pin: which weights that is; the folder of an evaluation takes no rollouts of others. None:
            a program, or a caller that holds folder and weights together by itself.
    """

    name: str
    spec: AgentSpec
    upstream: Upstream
    pin: ModelPin | None = None


def evaluate_policy(
    policy: Policy,
    problems: Sequence[Problem],
    worlds: Mapping[str, World],
    encoder: TitleEncoder,
    *,
    out: Path,
    settings: EvalSettings = GREEDY,
    clusters: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    runner: Runner | None = None,
    scorer: Scorer | None = None,
    hands: AbstractContextManager[Hands] | None = None,
    give_up: int = 0,
) -> EvalResult:
    """Roll a policy out over problems and score it; resumes what `out` already holds.

    Args:
        policy: the model, its harness and its name.
        problems: what to run, ids unique.
        worlds: catalogue id -> world, for every catalogue that a problem names.
        encoder: title similarity of the scorer; its id stands in the result.
        out: folder of this evaluation, one for each policy and decoding.
        settings: decoding, samples, seed, threads, budget.
        clusters: problem id -> leak cluster; the intervals' unit.
        progress: called in this thread after each rollout.
        clock: seconds, for `EvalResult.seconds`.
        runner: replaces the broker's rollout, for tests.
        scorer: replaces the outcome scorer, for tests.
        hands: who carries rollouts out; by default `settings.threads` threads.
        give_up: rollouts that infrastructure may break before one is scored; 0: any number.

    Raises:
        InputError: a problem's catalogue has no world, or problem ids repeat.
        ResumeError, ConfigError: `out` is another evaluation's or model's; a process holds it.
        UpstreamError: `give_up` rollouts were broken and none was scored.
    """
    _check(problems, worlds)
    if hands is None:
        runner = runner or policy_runner(policy, worlds, settings)
        scorer = scorer or outcome_scorer(worlds, encoder)
        hands = thread_hands(runner, scorer, settings.profiles, settings.threads)
    started = clock()
    with RolloutLog(out, identity_of(policy, problems, worlds, encoder, settings)) as log:
        jobs = open_jobs(problems, settings.samples, settings.seed, log.scores)
        if jobs:
            with hands as held:
                _carry_out(jobs, held, log, policy, settings, progress, give_up)
    return result_of(
        log.scores.values(),
        problems,
        settings,
        name=policy.name,
        encoder=encoder.encoder_id,
        model=policy.pin,
        clusters=clusters,
        seconds=clock() - started,
    )


def _carry_out(
    jobs: Sequence[Job],
    hands: Hands,
    log: RolloutLog,
    policy: Policy,
    settings: EvalSettings,
    progress: Callable[[Progress], None] | None,
    give_up: int,
) -> None:
    roll_out(
        jobs,
        hands,
        log,
        headline=settings.profiles[0],
        progress=progress,
        give_up=give_up,
        abandon=getattr(policy.upstream, "close", None),
    )


def result_of(
    scores: Iterable[RolloutScore],
    problems: Sequence[Problem],
    settings: EvalSettings,
    *,
    name: str,
    encoder: str,
    model: ModelPin | None,
    clusters: Mapping[str, str] | None,
    seconds: float = 0.0,
) -> EvalResult:
    """The result of scored rollouts of one policy; see `palio.evaluate.results.summarise`."""
    made = summarise(
        list(scores),
        problems,
        name=name,
        samples=settings.samples,
        temperature=settings.temperature,
        seed=settings.seed,
        profiles=settings.profiles,
        clusters=clusters,
        encoder=encoder,
        seconds=seconds,
    )
    return msgspec.structs.replace(made, model=model)


def policy_runner(policy: Policy, worlds: Mapping[str, World], settings: EvalSettings) -> Runner:
    """Rollouts of trusted in-process harness code; the policy itself is behind `upstream`."""
    driver = InlineDriver()
    sampling = {"temperature": settings.temperature, "top_p": settings.top_p}
    if settings.max_tokens:
        sampling["max_tokens"] = settings.max_tokens
    spec = msgspec.structs.replace(policy.spec, sampling={**policy.spec.sampling, **sampling})
    upstream = FirstRequest(policy.upstream)

    def run(problem: Problem, seed: int, attempt: int) -> Trajectory:
        return run_problem(
            spec,
            problem,
            worlds[problem.catalogue],
            driver=driver,
            upstream=upstream,
            limits=settings.limits,
            seed=seed,
            attempt=attempt,
            tools=settings.tools,
        )

    return run


def outcome_scorer(worlds: Mapping[str, World], encoder: TitleEncoder) -> Scorer:
    """The scorer of the race, one for each catalogue."""
    scorers = {
        name: OutcomeScorer(world.catalogue.products, encoder) for name, world in worlds.items()
    }

    def score(problem: Problem, trajectory: Trajectory, profile: Profile) -> OutcomeVerdict:
        return scorers[problem.catalogue].verdict(problem, trajectory, profile)

    return score


def _check(problems: Sequence[Problem], worlds: Mapping[str, World]) -> None:
    ids = [problem.problem_id for problem in problems]
    if len(set(ids)) != len(ids):
        raise InputError("problem ids repeat", remedy="give every problem its own id")
    missing = sorted({problem.catalogue for problem in problems} - worlds.keys())
    if missing:
        raise InputError(
            f"no world for the catalogue {missing[0]!r} that problems name",
            remedy="pass --catalogue for each catalogue of the suite",
        )


def identity_of(
    policy: Policy,
    problems: Sequence[Problem],
    worlds: Mapping[str, World],
    encoder: TitleEncoder,
    settings: EvalSettings,
) -> dict[str, Any]:
    """Everything that decides the rollouts; threads do not."""
    return {
        "policy": policy.name,
        "agent": msgspec.to_builtins(policy.spec.ref),
        **({MODEL: plain(policy.pin)} if policy.pin else {}),
        **terms_of(problems, worlds, encoder, settings),
    }


def terms_of(
    problems: Sequence[Problem],
    worlds: Mapping[str, World],
    encoder: TitleEncoder,
    settings: EvalSettings,
) -> dict[str, Any]:
    """What decides the rollouts beside the policy: two on the same terms can be compared."""
    used = sorted({problem.catalogue for problem in problems})
    return {
        "settings": {
            key: value
            for key, value in msgspec.to_builtins(settings).items()
            if key != "threads" and (key, value) != ("max_tokens", 0)
        },
        "problems": digest(list(problems)),
        "worlds": {name: worlds[name].digest for name in used},
        "encoder": encoder.encoder_id,
    }
