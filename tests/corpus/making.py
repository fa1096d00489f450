"""Synthetic trajectories and verdicts: one good run, and small changes that make it a bad one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palio.records import (
    AgentRef,
    DispatchEvent,
    Ending,
    Event,
    FunctionCall,
    InferenceEvent,
    JudgeId,
    Message,
    OutcomeVerdict,
    Problem,
    ReasoningVerdict,
    RichnessVerdict,
    ToolCall,
    Trajectory,
)
from palio.rollout.verdicts import Judged, Verdicts
from tests.suites.making import made_problem

JUDGE = JudgeId(name="made", version="1")
NAMES = ("find_product", "view_product_information", "recommend_product", "terminate")
TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of the test",
            "parameters": {"type": "object", "properties": {f"only_{name}": {"type": "string"}}},
        },
    }
    for name in NAMES
)

Turn = tuple[str, tuple[tuple[str, Any, str], ...], str]
"""(thinking, calls as (tool, arguments, result), content) of one assistant message."""


def good_turns(product: str, note: str = "") -> tuple[Turn, ...]:
    """Search, look, recommend, terminate."""
    row = f'[{{"product_id":"{product}","shop_id":"s1","title":"blue mug {note}","price":12}}]'
    seen = f'[{{"product_id":"{product}","attributes":{{"colour":["blue"]}}}}]'
    named = {"product_ids": product}
    return (
        (f"search mug. {note}", (("find_product", {"q": "blue mug"}, row),), ""),
        (f"look at {product}.", (("view_product_information", named, seen),), ""),
        (f"{product} is blue. pick it.", (("recommend_product", named, "ok"),), ""),
        ("done.", (("terminate", {"status": "success"}, ""),), ""),
    )


def call_arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, separators=(",", ":"))


def conversation(query: str, turns: Sequence[Turn], prefix: str = "c") -> tuple[Message, ...]:
    """The messages of the turns; a result of "" leaves the call unanswered."""
    messages = [Message(role="user", content=query)]
    for index, (thinking, calls, content) in enumerate(turns):
        made = tuple(
            ToolCall(
                id=f"{prefix}{index}-{position}",
                function=FunctionCall(name=tool, arguments=call_arguments(arguments)),
            )
            for position, (tool, arguments, _) in enumerate(calls)
        )
        messages.append(
            Message(
                role="assistant",
                content=content or None,
                reasoning_content=thinking or None,
                tool_calls=made,
            )
        )
        messages += [
            Message(role="tool", content=result, tool_call_id=call.id)
            for call, (_, _, result) in zip(made, calls, strict=True)
            if result
        ]
    return tuple(messages)


def record(messages: Sequence[Message], turns: Sequence[Turn], emitted: bool) -> tuple[Event, ...]:
    """The host's events; with `emitted` False the harness made every call up."""
    events: list[Event] = []
    assistant = [message for message in messages if message.role == "assistant"]
    for message, (_, calls, _) in zip(assistant, turns, strict=True):
        seq = len(events)
        events.append(
            InferenceEvent(
                seq=seq, at_ms=seq, duration_ms=1, prefix=0, request=(), completion=message
            )
        )
        for tool, arguments, result in calls:
            events.append(
                DispatchEvent(
                    seq=len(events),
                    at_ms=len(events),
                    duration_ms=1,
                    tool=tool,
                    arguments=call_arguments(arguments),
                    result=result,
                    emitted_by=seq if emitted else None,
                )
            )
    return tuple(events)


def made_trajectory(
    name: str,
    problem: Problem,
    turns: Sequence[Turn] | None = None,
    *,
    agent: str = "careful",
    emitted: bool = True,
    prefix: str = "c",
    **fields: Any,
) -> Trajectory:
    """A run of `turns` on `problem`; by default a good one that is like no other run."""
    product = problem.rewards[0].product_id
    shown = good_turns(product, note=name) if turns is None else turns
    messages = conversation(problem.query, shown, prefix)
    answers = [a for _, calls, _ in shown for tool, a, _ in calls if tool == "recommend_product"]
    answer = answers[-1].get("product_ids") if answers and isinstance(answers[-1], dict) else None
    events = record(messages, shown, emitted)
    if not emitted:
        messages = tuple(
            Message(role=m.role, content=m.content or m.reasoning_content)
            for m in messages
            if m.role != "tool"
        )
    base: dict[str, Any] = {
        "trajectory_id": name,
        "problem_id": problem.problem_id,
        "query": problem.query,
        "kind": problem.kind,
        "agent": AgentRef(name=agent),
        "events": events,
        "messages": messages,
        "tools": TOOLS,
        "answer": answer,
        "ending": Ending.terminated,
        "catalogue": problem.catalogue,
    }
    return Trajectory(**{**base, **fields})


def made_verdicts(
    trajectory: Trajectory,
    *,
    success: bool = True,
    quality: float | None = 0.9,
    richness: float | None = 1.0,
    unresolved: tuple[str, ...] | None = (),
) -> Verdicts:
    """Verdicts as the judges would write them."""
    ids: dict[str, Any] = {
        "trajectory_id": trajectory.trajectory_id,
        "problem_id": trajectory.problem_id,
        "judge": JUDGE,
    }
    coefficient = None if quality is None else 1.0 if quality >= 0.8 else 0.3 + quality * 0.875
    return Verdicts(
        outcomes=(OutcomeVerdict(**ids, profile="oro", status="scored", success=success),),
        reasoning=ReasoningVerdict(
            **ids,
            status="unjudged" if quality is None else "judged",
            quality=quality,
            coefficient=coefficient,
        ),
        richness=RichnessVerdict(
            **ids,
            evidence="unknown" if richness is None else "heuristic",
            emitted=0,
            dispatched=0,
            richness=richness,
            axis="unknown",
        ),
        unresolved=unresolved,
    )


def made_row(
    name: str, problem: Problem, turns: Sequence[Turn] | None = None, **fields: Any
) -> Judged:
    """A judged run; keyword arguments of `made_verdicts` and `made_trajectory` mixed."""
    judging = {
        key: fields.pop(key)
        for key in ("success", "quality", "richness", "unresolved")
        if key in fields
    }
    trajectory = made_trajectory(name, problem, turns, **fields)
    return Judged(trajectory=trajectory, verdicts=made_verdicts(trajectory, **judging))


def made_problems(count: int) -> tuple[Problem, ...]:
    """Problems that share nothing."""
    return tuple(made_problem(f"p{n:03}", (str(1000 + n),)) for n in range(count))


PROBLEMS = made_problems(5)
