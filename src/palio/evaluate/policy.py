"""Any policy on any problems through the same broker, harness and scorer as the race."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from palio.agents.spec import AgentSpec
from palio.broker.limits import Limits
from palio.broker.upstream import Upstream
from palio.evaluate.pin import MODEL, ModelPin, pin_of, plain
from palio.evaluate.results import EvalResult, summarise
from palio.evaluate.rollouts import (
    IDENTITY,
    Hands,
    Progress,
    RolloutLog,
    Runner,
    Scorer,
    open_jobs,
    read_identity,
    read_scores,
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
        threads: rollouts in flight; results do not depend on it.
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
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigError("temperature must be >= 0 and top_p in (0, 1]")
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
        clusters: problem id -> leak cluster; the bootstrap's unit.
        progress: called in this thread after each rollout.
        clock: seconds, for `EvalResult.seconds`.
        runner: replaces the broker's rollout, for tests.
        scorer: replaces the outcome scorer, for tests.
        hands: who carries rollouts out, e.g. `palio.evaluate.cluster.ray_hands`, which open the
            policy for themselves; by default `settings.threads` threads.
        give_up: rollouts that infrastructure may break before one is scored; 0: any number.

    Raises:
        InputError: a problem's catalogue has no world, or problem ids repeat.
        ResumeError: `out` belongs to another evaluation, or to other weights.
        ConfigError: another process evaluates into `out`.
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
                headline = settings.profiles[0]
                roll_out(jobs, held, log, headline=headline, progress=progress, give_up=give_up)
    return summarise(
        list(log.scores.values()),
        problems,
        name=policy.name,
        samples=settings.samples,
        temperature=settings.temperature,
        seed=settings.seed,
        profiles=settings.profiles,
        clusters=clusters,
        encoder=encoder.encoder_id,
        seconds=clock() - started,
        model=policy.pin,
    )


def load_result(
    folder: Path, problems: Sequence[Problem], clusters: Mapping[str, str] | None = None
) -> EvalResult:
    """The result of an evaluation folder, computed anew from its rollouts.

    Args:
        folder: `out` of an earlier `evaluate_policy`.
        problems: the problems that were evaluated.
        clusters: problem id -> leak cluster.

    Raises:
        InputError: there is no evaluation, or it was made on other problems.
    """
    identity = read_identity(folder)
    if identity.get("problems") != digest(list(problems)):
        raise InputError(
            "was made on other problems",
            where=str(folder),
            remedy="name the suite that the evaluation used, with the same --limit and --pool",
        )
    try:
        settings = msgspec.convert({**identity["settings"], "threads": 1}, EvalSettings)
        name, encoder = str(identity["policy"]), str(identity["encoder"])
        model = pin_of(identity)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InputError(
            f"not an evaluation's identity: {error}", where=str(folder / IDENTITY)
        ) from error
    return summarise(
        list(read_scores(folder).values()),
        problems,
        name=name,
        samples=settings.samples,
        temperature=settings.temperature,
        seed=settings.seed,
        profiles=settings.profiles,
        clusters=clusters,
        encoder=encoder,
        model=model,
    )


def evaluated(folder: Path, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Those problems of a suite that an evaluation was made on, in its order.

    Args:
        folder: `out` of an earlier `evaluate_policy`.
        problems: of the suite, more of them maybe.

    Raises:
        InputError: there is no evaluation, it was made on other problems, or not all were run yet.
    """
    identity = read_identity(folder)
    ran = {score.problem_id for score in read_scores(folder).values()}
    found = tuple(problem for problem in problems if problem.problem_id in ran)
    for some in (found, tuple(sorted(found, key=lambda problem: problem.problem_id))):
        if digest(list(some)) == identity.get("problems"):
            return some
    raise InputError(
        f"of its problems the suite holds {len(found)}, and they are not those it was made on",
        where=str(folder),
        remedy="name the suite that the evaluation used, and finish the evaluation",
    )


def check_alike(a: Path, b: Path) -> None:
    """Refuse to pair two evaluations in which a problem was not the same task.

    Tools may differ: what they are worth is a question of its own.

    Raises:
        InputError: one is none, or they were made in other worlds, or scored by another similarity.
    """
    one, two = read_identity(a), read_identity(b)
    other = [key for key in ("worlds", "encoder") if one.get(key) != two.get(key)]
    if other:
        raise InputError(
            f"these evaluations were not made on equal terms: other {' and '.join(other)}",
            where=f"{a} and {b}",
            remedy="evaluate both with the same --catalogue, --world and --encoder",
        )


def policy_runner(policy: Policy, worlds: Mapping[str, World], settings: EvalSettings) -> Runner:
    """Rollouts of trusted in-process harness code; the policy itself is behind `upstream`."""
    driver = InlineDriver()
    sampling = {"temperature": settings.temperature, "top_p": settings.top_p}
    if settings.max_tokens:
        sampling["max_tokens"] = settings.max_tokens
    spec = msgspec.structs.replace(policy.spec, sampling={**policy.spec.sampling, **sampling})

    def run(problem: Problem, seed: int, attempt: int) -> Trajectory:
        return run_problem(
            spec,
            problem,
            worlds[problem.catalogue],
            driver=driver,
            upstream=policy.upstream,
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
