"""What a run was, as one record, follows from its events and from what the agent returned."""

from __future__ import annotations

from typing import Any

from palio import __version__
from palio.broker.claim import compare_claim, record_differences
from palio.broker.conversation import build_messages
from palio.broker.ending import decide_ending
from palio.broker.facts import RunFacts
from palio.broker.record import RunRecord, Span
from palio.records import Ending, Fault, FaultCode, Trajectory


def run_trajectory(
    run: RunFacts,
    record: RunRecord,
    ending: Ending | None,
    fault: Fault | None,
    claim: Any,
    seconds: float,
) -> Trajectory:
    """The trajectory of a run.

    Args:
        run: what it was made with.
        record: its events.
        ending: how the host saw it end.
        fault: what it saw go wrong.
        claim: what the agent returned, None when nothing.
        seconds: how long it took.
    """
    events = record.events
    report = compare_claim(claim, events, record.answer)
    ending, fault = decide_ending(
        ending,
        fault,
        events,
        terminated=record.terminated or report.terminated,
        answered=report.answer is not None,
        exhausted=record.exhausted,
        max_steps=run.world.config.max_steps,
    )
    world, problem = run.world, run.problem
    return Trajectory(
        trajectory_id=run.trajectory_id,
        problem_id=problem.problem_id,
        query=problem.query,
        kind=problem.kind,
        agent=run.agent,
        events=events,
        messages=build_messages(problem.query, events),
        tools=record.tools,
        answer=report.answer,
        ending=ending,
        fault=fault,
        differences=(*report.differences, *record_differences(events, report.answer)),
        suite_id=run.suite_id,
        catalogue=world.catalogue.catalogue_id,
        catalogue_digest=world.catalogue.digest,
        isolation=run.isolation,
        eligible=run.eligible,
        seed=run.seed,
        attempt=run.attempt,
        duration_s=seconds,
        tool_version=__version__,
    )


def pending_fault(span: Span, seconds: float) -> Fault | None:
    """A reply that took half of the whole run and never came is the platform's fault."""
    waited = span.end - span.start
    if waited < seconds / 2:
        return None
    return Fault(
        code=FaultCode.upstream_timed_out,
        what=f"the model server had not answered after {waited:.1f} s when the run ended",
        remedy="give the upstream a time-out well below the run's",
    )
