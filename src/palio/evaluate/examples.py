"""One success and one near miss to read, chosen by rule and not by taste."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from palio.evaluate.report_data import Example
from palio.evaluate.rollouts import RolloutRow
from palio.records import Problem, ReasoningVerdict, RichnessVerdict, Trajectory

ReasoningJudge = Callable[[Trajectory], ReasoningVerdict]
RichnessJudge = Callable[[Trajectory], RichnessVerdict]


def pick_examples(
    rows: Iterable[RolloutRow],
    problems: Mapping[str, Problem],
    reasoning: ReasoningJudge,
    richness: RichnessJudge,
) -> tuple[Example, ...]:
    """The success with the best reasoning and the failure that came closest, where there are any.

    Success: `oro` and `strict`, best reasoning quality, then most items wanted, then fewest turns.
    Failure: an answer was given and `oro` failed, highest rule score, then best quality. Ties go to
    the smaller trajectory id, so equal runs show equal examples.

    Args:
        rows: rollouts of one evaluation, `palio.evaluate.rollouts.read_rollouts`.
        problems: problem id -> problem.
        reasoning: e.g. `EvidenceJudge().verdict`.
        richness: e.g. `richness_verdict`.
    """
    best: tuple[tuple[float, ...], str, RolloutRow] | None = None
    near: tuple[tuple[float, ...], str, RolloutRow] | None = None
    for row in rows:
        score, made = row.score, row.trajectory
        if score.status != "scored" or score.problem_id not in problems:
            continue
        quality = reasoning(made).quality or 0.0
        if all(score.success.values()) and score.success:
            items = len(problems[score.problem_id].rewards)
            best = _better(best, ((quality, items, -score.behaviour.turns), row))
        elif made.answer is not None and not score.success.get("oro", False):
            near = _better(near, ((score.rule, quality), row))
    picked = [("A success", best), ("A failure that came close", near)]
    return tuple(
        _example(heading, found[2], problems, reasoning, richness)
        for heading, found in picked
        if found is not None
    )


def _better(
    held: tuple[tuple[float, ...], str, RolloutRow] | None,
    offered: tuple[tuple[float, ...], RolloutRow],
) -> tuple[tuple[float, ...], str, RolloutRow]:
    key, row = offered
    made = (key, row.trajectory.trajectory_id, row)
    if held is None or key > held[0] or (key == held[0] and made[1] < held[1]):
        return made
    return held


def _example(
    heading: str,
    row: RolloutRow,
    problems: Mapping[str, Problem],
    reasoning: ReasoningJudge,
    richness: RichnessJudge,
) -> Example:
    return Example(
        heading=heading,
        problem=problems[row.score.problem_id],
        trajectory=row.trajectory,
        outcomes=row.verdicts,
        reasoning=reasoning(row.trajectory),
        richness=richness(row.trajectory),
    )
