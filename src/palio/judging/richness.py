"""Who emitted the catalogue calls: the model or the harness, decided from the record alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from palio.records.base import digest
from palio.records.trajectory import DispatchEvent, Trajectory
from palio.records.verdict import Axis, JudgeId, RichnessVerdict
from palio.world.arguments import CATALOGUE_TOOLS

RICHNESS = "richness"
RICHNESS_VERSION = "2"


def richness_verdict(
    trajectory: Trajectory, agentic: float = 0.9, subtask: float = 0.1
) -> RichnessVerdict:
    """Share of catalogue dispatches that a completion asked for, and the axis it means.

    The record links a dispatch to a completion by a proof that came with it, or by call id and
    equal arguments. A call that the model only repeated from the agent's own prompt is the
    harness's (`DispatchEvent.echoed`). Evidence is "verified" when proofs were in use and every
    call that counts as the model's has a valid one; "heuristic" when some are only linked. Without
    any catalogue dispatch there is no evidence and no number.

    Args:
        trajectory: the run.
        agentic: richness from which a run is Axis A.
        subtask: richness up to which a run is Axis B; between the two it is "mixed".
    """
    calls = [event for event in trajectory.dispatches if event.tool in CATALOGUE_TOOLS]
    linked = [event for event in calls if event.emitted_by is not None and not event.echoed]
    emitted = len(linked)
    richness = emitted / len(calls) if calls else None
    decides = {
        "agentic": agentic,
        "subtask": subtask,
        "tools": sorted(CATALOGUE_TOOLS),
        "echoed": "harness",
    }
    return RichnessVerdict(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        judge=JudgeId(name=RICHNESS, version=RICHNESS_VERSION, config_digest=digest(decides)),
        evidence=_evidence(calls, linked),
        emitted=emitted,
        dispatched=len(calls),
        richness=richness,
        axis=axis_of(richness, agentic, subtask),
    )


def _evidence(
    calls: Sequence[DispatchEvent], linked: Sequence[DispatchEvent]
) -> Literal["verified", "heuristic", "unknown"]:
    if not calls:
        return "unknown"
    in_use = all(event.nonce for event in calls)
    proven = all(event.nonce == "valid" for event in linked)
    return "verified" if in_use and proven else "heuristic"


def axis_of(richness: float | None, agentic: float = 0.9, subtask: float = 0.1) -> Axis:
    """Axis of a richness in [0, 1]; "unknown" for None."""
    if richness is None:
        return "unknown"
    if richness >= agentic:
        return "agentic"
    return "subtask" if richness <= subtask else "mixed"
