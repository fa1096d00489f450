"""Every recorded run gets its verdicts by one function, whoever ran it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from palio.judging import EvidenceJudge, OutcomeScorer, TitleEncoder, richness_verdict
from palio.judging.store import VERDICTS, append_verdicts
from palio.records import (
    PROFILES,
    InputError,
    OutcomeVerdict,
    Problem,
    Profile,
    ReasoningVerdict,
    RichnessVerdict,
    Trajectory,
    Verdict,
)
from palio.world.catalogue import Catalogue


class Judged(NamedTuple):
    """One run with all its verdicts."""

    trajectory: Trajectory
    outcomes: Mapping[Profile, OutcomeVerdict]
    reasoning: ReasoningVerdict
    richness: RichnessVerdict

    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts, outcomes first."""
        return (*self.outcomes.values(), self.reasoning, self.richness)


def judge_runs(
    trajectories: Iterable[Trajectory],
    problems: Iterable[Problem],
    catalogues: Iterable[Catalogue],
    encoder: TitleEncoder,
    profiles: Iterable[Profile] = PROFILES,
) -> Iterator[Judged]:
    """Judge runs one by one.

    Args:
        trajectories: the runs.
        problems: at least those of the runs.
        catalogues: at least those of the runs.
        encoder: title similarity of the outcome scorer.
        profiles: outcome profiles to score under.

    Raises:
        InputError: a run is of an unknown problem or catalogue.
    """
    known = {(problem.catalogue, problem.problem_id): problem for problem in problems}
    scorers = {
        catalogue.catalogue_id: OutcomeScorer(catalogue.products, encoder)
        for catalogue in catalogues
    }
    judge = EvidenceJudge()
    wanted = tuple(profiles)
    for run in trajectories:
        problem = known.get((run.catalogue, run.problem_id)) or known.get(("", run.problem_id))
        scorer = scorers.get(run.catalogue)
        if problem is None or scorer is None:
            what = "problem" if problem is None else "catalogue"
            raise InputError(
                f"the {what} of this run is not among those given",
                where=f"run {run.trajectory_id}: {run.problem_id} in {run.catalogue}",
            )
        outcomes = {profile: scorer.verdict(problem, run, profile) for profile in wanted}
        yield Judged(run, outcomes, judge.verdict(run), richness_verdict(run))


def keep_verdicts(folder: Path, judged: Iterable[Judged]) -> int:
    """Append the verdicts to the run folder's verdict file; how many were new."""
    return append_verdicts(
        folder / VERDICTS, (verdict for run in judged for verdict in run.verdicts())
    )
