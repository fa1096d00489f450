"""Verdicts of the evidence judge on labelled rows."""

from __future__ import annotations

from collections.abc import Iterable

from palio.evaluate.calibration import LabelledRow, trajectories_of
from palio.judging import EvidenceJudge
from palio.records import ReasoningVerdict


def by_evidence(rows: Iterable[LabelledRow]) -> dict[str, ReasoningVerdict]:
    """Trajectory id -> verdict."""
    judge = EvidenceJudge()
    return {run.trajectory_id: judge.verdict(run) for run in trajectories_of(rows)}
