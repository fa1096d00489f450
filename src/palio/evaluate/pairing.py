"""Two evaluations paired by problem: the only comparison in which luck of the draw cancels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from palio.broker.pin import ModelPin
from palio.evaluate.comparison import Comparison, compare, with_holm
from palio.evaluate.results import OVERALL, EvalResult
from palio.evaluate.statistics import CONFIDENCE
from palio.records import KINDS, InputError, Problem, Profile


def compare_results(
    a: EvalResult,
    b: EvalResult,
    problems: Sequence[Problem],
    *,
    profile: Profile = "oro",
    clusters: Mapping[str, str] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[Comparison, ...]:
    """Greedy a against greedy b, overall and by intent, on the problems that both were scored on.

    The intents form one Holm family; the overall row repeats the same data, so it stands alone.

    Raises:
        InputError: one of them is sampled, or they share no scored problem.
    """
    for result in (a, b):
        if result.mode != "greedy":
            raise InputError(
                f"{result.name} is sampled: a paired test needs one greedy rollout each",
                remedy="name the folder greedy beside it",
            )
    rows = compare_outcomes(
        greedy_outcomes(a, profile),
        greedy_outcomes(b, profile),
        problems,
        names=(a.name, b.name),
        profile=profile,
        clusters=clusters,
        confidence=confidence,
    )
    return of_models(rows, a.model, b.model)


def of_models(
    rows: Sequence[Comparison], a: ModelPin | None, b: ModelPin | None
) -> tuple[Comparison, ...]:
    """The comparisons, saying which models they are of."""
    return tuple(replace(row, model_a=a, model_b=b) for row in rows)


def greedy_outcomes(result: EvalResult, profile: Profile) -> dict[str, bool]:
    """Success by problem id of the scored greedy rollouts."""
    return {
        row.problem_id: row.success.get(profile, False)
        for row in result.scores
        if row.status == "scored"
    }


def compare_outcomes(
    a: Mapping[str, bool],
    b: Mapping[str, bool],
    problems: Sequence[Problem],
    *,
    names: tuple[str, str],
    profile: Profile = "oro",
    clusters: Mapping[str, str] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[Comparison, ...]:
    """`compare_results` on bare success maps; floors come in here."""
    shared = [p for p in problems if p.problem_id in a and p.problem_id in b]
    if not shared:
        raise InputError(
            f"{names[0]} and {names[1]} share no scored problem",
            remedy="rollouts that infrastructure broke are not scored; `palio eval run` says by "
            "what, and tries them again",
        )

    def row(intent: str, chosen: Sequence[Problem]) -> Comparison:
        ids = [problem.problem_id for problem in chosen]
        return compare(
            [a[problem_id] for problem_id in ids],
            [b[problem_id] for problem_id in ids],
            names=names,
            intent=intent,
            profile=profile,
            clusters=[(clusters or {}).get(problem_id, problem_id) for problem_id in ids],
            confidence=confidence,
        )

    kinds = [kind for kind in KINDS if any(problem.kind == kind for problem in shared)]
    intents = [row(kind, [p for p in shared if p.kind == kind]) for kind in kinds]
    return (row(OVERALL, shared), *with_holm(intents))
