"""A suite is put to a policy in its own world: there its targets are right answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from palio.agents.oracle import oracle_calls
from palio.judging.encoders import TitleEncoder, TitleUnavailableError
from palio.judging.outcome import LookupFailedError, OutcomeScorer
from palio.records import InputError, Problem
from palio.world.catalogue import Catalogue
from palio.world.tools import canonical_arguments


def unsolvable(
    problems: Iterable[Problem], catalogues: Mapping[str, Catalogue], encoder: TitleEncoder
) -> dict[str, tuple[str, ...]]:
    """Problems whose own targets are no right answer, by catalogue; few may be so in real data.

    Catalogues of one name may differ, and product ids repeat from one to the next, so that a
    suite fits where it does not belong: every policy would score next to nothing there.

    Args:
        problems: to be put to a policy.
        catalogues: catalogue id -> catalogue.
        encoder: title similarity of the scorer; what it cannot compare counts as solvable.

    Raises:
        InputError: of a catalogue more than half of the problems cannot be solved.
    """
    scorers = {
        name: OutcomeScorer(catalogue.products, encoder) for name, catalogue in catalogues.items()
    }
    asked: dict[str, int] = {}
    failed: dict[str, list[str]] = {}
    for problem in problems:
        if problem.catalogue in scorers and problem.rewards:
            asked[problem.catalogue] = asked.get(problem.catalogue, 0) + 1
            if not _solved(problem, scorers[problem.catalogue]):
                failed.setdefault(problem.catalogue, []).append(problem.problem_id)
    for name, ids in failed.items():
        if 2 * len(ids) > asked[name]:
            raise InputError(
                f"the catalogue {name!r} is not the one that the suite was made with: of its "
                f"{asked[name]} problems {len(ids)} cannot be solved there, {ids[0]!r} first",
                remedy="name the catalogue that the suite was made with; its name alone does not "
                "tell",
            )
    return {name: tuple(ids) for name, ids in failed.items()}


def _solved(problem: Problem, scorer: OutcomeScorer) -> bool:
    _, (tool, arguments), _ = oracle_calls(problem)
    answer = canonical_arguments(tool, arguments)["product_ids"]
    try:
        return scorer.score_answer(problem, answer, "oro")[1]
    except (TitleUnavailableError, LookupFailedError):
        return True
