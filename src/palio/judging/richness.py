"""Who emitted the catalogue calls: the model or the harness, decided from the record alone."""

from __future__ import annotations

from palio.records.base import digest
from palio.records.trajectory import Trajectory
from palio.records.verdict import Axis, JudgeId, RichnessVerdict
from palio.world.arguments import CATALOGUE_TOOLS

RICHNESS = "richness"
RICHNESS_VERSION = "1"


def richness_verdict(
    trajectory: Trajectory, agentic: float = 0.9, subtask: float = 0.1
) -> RichnessVerdict:
    """Share of catalogue dispatches that a completion asked for, and the axis it means.

    The record links a dispatch to a completion by call id or by equal name and canonical
    arguments, which is "heuristic" evidence: a harness could make the model echo a planned call.
    Without any catalogue dispatch there is no evidence and no number.

    Args:
        trajectory: the run.
        agentic: richness from which a run is Axis A.
        subtask: richness up to which a run is Axis B; between the two it is "mixed".
    """
    calls = [event for event in trajectory.dispatches if event.tool in CATALOGUE_TOOLS]
    emitted = sum(event.emitted_by is not None for event in calls)
    richness = emitted / len(calls) if calls else None
    decides = {"agentic": agentic, "subtask": subtask, "tools": sorted(CATALOGUE_TOOLS)}
    return RichnessVerdict(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        judge=JudgeId(name=RICHNESS, version=RICHNESS_VERSION, config_digest=digest(decides)),
        evidence="unknown" if richness is None else "heuristic",
        emitted=emitted,
        dispatched=len(calls),
        richness=richness,
        axis=axis_of(richness, agentic, subtask),
    )


def axis_of(richness: float | None, agentic: float = 0.9, subtask: float = 0.1) -> Axis:
    """Axis of a richness in [0, 1]; "unknown" for None."""
    if richness is None:
        return "unknown"
    if richness >= agentic:
        return "agentic"
    return "subtask" if richness <= subtask else "mixed"
