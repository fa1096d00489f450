"""What no policy at all scores on the same problems: answers that never read a result.

The floors search once, with the request verbatim, and answer from the first page without looking at
it. A wish list of k items gets k distinct hits, since answers are matched to items by position:

- ``first-hit``: the first k distinct hits in rank order;
- ``random-hit``: k distinct hits drawn from the first page in random order. The rate is the
  expected one: exact when a page has at most `EXACT` ordered draws, else the mean of `EXACT`
  seeded draws.

Splitting a request into one search an item would already be reading it, so no floor does it. A page
with fewer than k hits is answered with all it has, which fails. Under `strict` a floor's answer is
grounded and terminated by construction.

Beside them stands a ceiling, ``reader``: the scripted policy that takes the request apart with
regular expressions and checks every wish against what the tools show. On templated requests a
student of such policies can reach it; for requests that people wrote it is no ceiling at all.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.evaluate.comparison import Comparison
from palio.evaluate.pairing import compare_outcomes, greedy_outcomes, of_models
from palio.evaluate.results import OVERALL, EvalResult, Rate, rate_of
from palio.evaluate.rollouts import sample_seed
from palio.evaluate.statistics import Estimate, cluster_mean, wilson
from palio.judging.encoders import TitleEncoder
from palio.judging.outcome import OutcomeScorer
from palio.records import KINDS, InputError, Problem, Profile, Record
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.world.tools import SEVEN_TOOLS
from palio.world.world import World

EXACT = 1_000
"""Ordered draws that are enumerated: all of a compact page (5 hits, up to 4 items: 120)."""

Answers = tuple[Sequence[str], bool]
"""Equally likely answers, each a comma list of ids, and whether they are all there are."""


@dataclass(frozen=True)
class Floor:
    """One way to answer without reading."""

    name: str
    definition: str
    answers: Callable[[Problem, World, int], Answers]
    certain: bool


class FloorScore(Record, frozen=True):
    """Expected strict success by profile on one problem, in [0, 1], and expected rule score."""

    problem_id: str
    success: dict[str, float]
    rule: float


class FloorResult(Record, frozen=True):
    """One floor on one set of problems.

    Attributes:
        certain: one answer a problem, so that rates are Wilson proportions and pairs can be tested.
        sampled_problems: problems whose expectation was drawn, not enumerated.
        rates: intent ("overall" first) -> profile -> rate.
        car: mean expected rule score under the first profile.
        scores: one a problem, in the problems' order.
    """

    name: str
    definition: str
    certain: bool
    sampled_problems: int
    encoder: str
    rates: dict[str, dict[str, Rate]]
    car: dict[str, Estimate]
    scores: tuple[FloorScore, ...]

    @property
    def sort(self) -> str:
        """What tables call it: a floor, or a ceiling."""
        return "ceiling" if self.name == READER.name else "floor"

    def outcomes(self, profile: Profile) -> dict[str, bool]:
        """Success by problem id.

        Raises:
            InputError: the floor is an expectation, which has no outcome a problem.
        """
        if not self.certain:
            raise InputError(f"floor {self.name} is an expectation: compare it with `gap_to_floor`")
        return {score.problem_id: score.success[profile] >= 1 for score in self.scores}


def wanted_items(problem: Problem) -> int:
    """How many ids an answer has: one for product and web, one a wanted item otherwise."""
    return 1 if problem.kind in {"product", "web"} else len(problem.rewards)


def _first_page(problem: Problem, world: World) -> list[str]:
    return list(dict.fromkeys(world.index.page(problem.query, 1)))


def _first_hit(problem: Problem, world: World, seed: int) -> Answers:  # noqa: ARG001 - no chance
    return (",".join(_first_page(problem, world)[: wanted_items(problem)]),), True


def _random_hit(problem: Problem, world: World, seed: int) -> Answers:
    page = _first_page(problem, world)
    k = min(wanted_items(problem), len(page))
    if math.perm(len(page), k) <= EXACT:
        return [",".join(draw) for draw in itertools.permutations(page, k)], True
    rng = random.Random(sample_seed(seed, problem.problem_id, 0))
    return [",".join(rng.sample(page, k)) for _ in range(EXACT)], False


FIRST_HIT = Floor(
    name="first-hit",
    definition="the first hits of the request searched verbatim",
    answers=_first_hit,
    certain=True,
)
RANDOM_HIT = Floor(
    name="random-hit",
    definition="random hits from the first page of the request searched verbatim",
    answers=_random_hit,
    certain=False,
)


def _read(
    problem: Problem, world: World, seed: int, tools: tuple[str, ...] = SEVEN_TOOLS
) -> Answers:
    run = run_problem(
        find_agent("careful"),
        problem,
        world,
        driver=InlineDriver(),
        upstream=ScriptedUpstream(),
        seed=seed,
        tools=tools,
    )
    return (run.answer if isinstance(run.answer, str) else "",), True


READER = Floor(
    name="reader",
    definition="regular expressions read the request, every wish is checked on what the tools show",
    answers=_read,
    certain=True,
)
FLOORS = (FIRST_HIT, RANDOM_HIT, READER)


def floors_under(tools: tuple[str, ...]) -> tuple[Floor, ...]:
    """All floors; the ceiling has the tools that the policy has."""
    return (FIRST_HIT, RANDOM_HIT, replace(READER, answers=partial(_read, tools=tools)))


def evaluate_floor(
    floor: Floor,
    problems: Sequence[Problem],
    worlds: Mapping[str, World],
    encoder: TitleEncoder,
    *,
    profiles: tuple[Profile, ...] = ("oro", "strict"),
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> FloorResult:
    """Score a floor on every problem.

    Args:
        floor: how answers are made.
        problems: the problems of the policies that it is a floor for.
        worlds: catalogue id -> world.
        encoder: title similarity of the scorer.
        profiles: outcome profiles; the first gives CAR.
        clusters: problem id -> leak cluster, the intervals' unit.
        seed: of drawn answers and of the bootstrap.

    Raises:
        InputError: a problem's catalogue has no world.
    """
    scorers = {
        name: OutcomeScorer(world.catalogue.products, encoder) for name, world in worlds.items()
    }
    scores, drawn = [], 0
    for problem in problems:
        if problem.catalogue not in worlds:
            raise InputError(
                f"no world for the catalogue {problem.catalogue!r}", where=problem.problem_id
            )
        answers, exact = floor.answers(problem, worlds[problem.catalogue], seed)
        drawn += not exact
        scores.append(_expected(problem, answers, scorers[problem.catalogue], profiles))
    by_id = {score.problem_id: score for score in scores}
    groups = _groups(problems)
    labels = clusters or {}
    return FloorResult(
        name=floor.name,
        definition=floor.definition,
        certain=floor.certain,
        sampled_problems=drawn,
        encoder=encoder.encoder_id,
        rates={
            group: {
                profile: _rate([by_id[i].success[profile] for i in ids], ids, floor, labels, seed)
                for profile in profiles
            }
            for group, ids in groups.items()
        },
        car={
            group: cluster_mean(
                [by_id[i].rule for i in ids], [labels.get(i, i) for i in ids], seed=seed
            )
            for group, ids in groups.items()
        },
        scores=tuple(scores),
    )


def _groups(problems: Sequence[Problem]) -> dict[str, list[str]]:
    groups = {OVERALL: [problem.problem_id for problem in problems]}
    for kind in KINDS:
        ids = [problem.problem_id for problem in problems if problem.kind == kind]
        if ids:
            groups[kind] = ids
    return groups


def _expected(
    problem: Problem,
    answers: Sequence[str],
    scorer: OutcomeScorer,
    profiles: tuple[Profile, ...],
) -> FloorScore:
    success = dict.fromkeys(map(str, profiles), 0.0)
    rule = 0.0
    for answer in answers:
        for place, profile in enumerate(profiles):
            scores, hit = scorer.score_answer(problem, answer, profile)
            success[profile] += hit
            rule += scores.get("rule", 0.0) if place == 0 else 0.0
    count = len(answers)
    return FloorScore(
        problem_id=problem.problem_id,
        success={profile: hits / count for profile, hits in success.items()},
        rule=min(1.0, rule / count),
    )


def _rate(
    values: list[float], ids: list[str], floor: Floor, labels: Mapping[str, str], seed: int
) -> Rate:
    if floor.certain:
        return rate_of(wilson(sum(value >= 1 for value in values), len(values)))
    return rate_of(cluster_mean(values, [labels.get(i, i) for i in ids], seed=seed))


def compare_with_floor(
    result: EvalResult,
    floor: FloorResult,
    problems: Sequence[Problem],
    *,
    profile: Profile = "oro",
    clusters: Mapping[str, str] | None = None,
) -> tuple[Comparison, ...]:
    """A greedy policy against a certain floor, paired by problem, overall and by intent."""
    rows = compare_outcomes(
        greedy_outcomes(result, profile),
        floor.outcomes(profile),
        problems,
        names=(result.name, floor.name),
        profile=profile,
        clusters=clusters,
    )
    return of_models(rows, result.model, None)


def gap_to_floor(
    result: EvalResult,
    floor: FloorResult,
    problems: Sequence[Problem],
    *,
    profile: Profile = "oro",
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Mean of (greedy success - floor's expected success) by intent, in [-1, 1]; any floor."""
    wins = greedy_outcomes(result, profile)
    expected = {score.problem_id: score.success[profile] for score in floor.scores}
    labels = clusters or {}
    gaps = {}
    for group, ids in _groups(problems).items():
        shared = [i for i in ids if i in wins and i in expected]
        gaps[group] = cluster_mean(
            [float(wins[i]) - expected[i] for i in shared],
            [labels.get(i, i) for i in shared],
            seed=seed,
            bounds=(-1, 1),
        )
    return gaps
