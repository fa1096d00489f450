"""How a run ended, and who is to blame, follows from the record by one fixed rule."""

from __future__ import annotations

from collections.abc import Sequence

from palio.records import Blame, Ending, Event, Fault, InferenceEvent


def decide_ending(
    seen: Ending | None,
    fault: Fault | None,
    events: Sequence[Event],
    *,
    terminated: bool,
    answered: bool,
    exhausted: Fault | None,
    max_steps: int,
) -> tuple[Ending, Fault | None]:
    """The ending and fault of a run.

    1. A fault that the host saw and that is not the agent's: infra.
    2. Any event carries a platform fault, and the run did not terminate normally with an answer:
       infra, with the first such fault. A run that overcame the failure is scored as it stands.
    3. What the host saw (timed_out, crashed, invalid) with its fault.
    4. terminated; else step_limit when the agent used all of the world's model turns; else
       returned. A run that spent its budget and gave no answer carries that as its fault.

    Args:
        seen: how the host saw the run end, None when the agent returned normally.
        fault: the fault that goes with `seen`.
        events: the record.
        terminated: whether terminate was called.
        answered: whether there is an answer.
        exhausted: the first budget fault.
        max_steps: model turns that the world allows.
    """
    if fault is not None and fault.blame is not Blame.agent:
        return Ending.infra, fault
    normal = seen is None or seen is Ending.terminated
    if not (normal and terminated and answered):
        platform = first_platform_fault(events)
        if platform is not None:
            return Ending.infra, platform
    if seen is not None:
        return seen, fault
    if not answered:
        fault = fault or exhausted
    if terminated:
        return Ending.terminated, fault
    turns = sum(1 for event in events if isinstance(event, InferenceEvent))
    return (Ending.step_limit if turns >= max_steps else Ending.returned), fault


def first_platform_fault(events: Sequence[Event]) -> Fault | None:
    """The first fault of an event that is not the agent's."""
    for event in events:
        if event.fault is not None and event.fault.blame is not Blame.agent:
            return event.fault
    return None
