"""One sub-task trajectory becomes an agentic one, or a reason why it cannot.

In this order, cheapest first: it must be scored and not agentic already, have an answer, replay
without a difference, and follow from its own prefixes; only then is thinking written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from palio import __version__
from palio.agents.harness import harness_settings
from palio.broker.upstream import RejectedError
from palio.corpus.derivable import Prefix
from palio.corpus.gates import Drop
from palio.corpus.replay import Recorded, Replayer
from palio.corpus.salvage.mark import AGENT_MARK, SOURCE_MARK
from palio.corpus.salvage.moment import Moment, Rewriter, Step, UnfoundedError
from palio.judging.answers import product_ids
from palio.judging.outcome import infrastructure_fault
from palio.judging.richness import richness_verdict
from palio.records import (
    AgentRef,
    Axis,
    DispatchEvent,
    Ending,
    Event,
    FunctionCall,
    InferenceEvent,
    Message,
    Record,
    ToolCall,
    Trajectory,
    UpstreamError,
    digest,
)
from palio.world.arguments import CATALOGUE_TOOLS, SEVEN_TOOLS, UNPARSED, canonical_arguments
from palio.world.tools import ToolReply, tool_message

SALVAGE_VERSION = "1"
RECOMMEND, TERMINATE = "recommend_product", "terminate"
KEY_ORDER = ("q", "price", "service", "shop_id", "sort", "page")
"""Order of search arguments in rows of the scripted models; a student sees one order only."""


class SalvageConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Choices of a salvage.

    Attributes:
        axes: which traces are taken; "unknown" are those without a single catalogue call.
        agentic: richness from which a trace is agentic already.
        subtask: richness up to which it is sub-task.
        tools: what the rewritten row says it was offered.
        steps: whether rows longer than the world's step limit are dropped.
    """

    axes: tuple[Axis, ...] = ("subtask", "mixed", "unknown")
    agentic: float = 0.9
    subtask: float = 0.1
    tools: tuple[str, ...] = SEVEN_TOOLS
    steps: bool = True
    version: str = SALVAGE_VERSION


class Turn(NamedTuple):
    """One turn to be: calls as (tool, canonical arguments), the world's replies to them."""

    calls: tuple[tuple[str, dict[str, Any]], ...]
    replies: tuple[ToolReply, ...]


def salvage_one(
    trajectory: Trajectory, replayer: Replayer, rewriter: Rewriter, config: SalvageConfig
) -> Trajectory | Drop:
    """The agentic trajectory that a sub-task one becomes, or why it becomes none.

    Reasons: unscored, already_salvaged, axis_*, no_answer, bad_arguments, replay_mismatch,
    underivable, over_steps, unfounded, rewriter_failed.
    """
    drop = _unfit(trajectory, config)
    if drop is not None:
        return drop
    turns = _replayed(trajectory, replayer)
    if isinstance(turns, Drop):
        return turns
    drop = underivable(trajectory.query, turns)
    if drop is not None:
        return drop
    limit = replayer.world.config.max_steps
    if config.steps and len(turns) > limit:
        return Drop(reason="over_steps", detail=f"{len(turns)} turns, the world allows {limit}")
    try:
        thoughts = _thoughts(trajectory.query, turns, replayer, rewriter)
    except UnfoundedError as error:
        return Drop(reason="unfounded", detail=error.what)
    except (UpstreamError, RejectedError) as error:
        return Drop(reason="rewriter_failed", detail=error.what)
    return _rewritten(trajectory, turns, thoughts, replayer, rewriter.rewriter_id, config)


def _unfit(trajectory: Trajectory, config: SalvageConfig) -> Drop | None:
    fault = infrastructure_fault(trajectory)
    if fault is not None:
        return Drop(reason="unscored", detail=fault.what)
    if trajectory.salvaged:
        return Drop(reason="already_salvaged")
    axis = richness_verdict(trajectory, config.agentic, config.subtask).axis
    if axis not in config.axes:
        return Drop(reason=f"axis_{axis}")
    if not product_ids(trajectory.answer):
        return Drop(reason="no_answer", detail="nothing was recommended")
    return None


def _replayed(trajectory: Trajectory, replayer: Replayer) -> tuple[Turn, ...] | Drop:
    """The turns of the new row with the world's replies, each equal to what was recorded.

    Calls after the recommendation cannot have led to it and are left out.
    """
    turns = []
    for event in _calls_before_the_answer(trajectory.dispatches):
        given = ordered(event.tool, canonical_arguments(event.tool, event.arguments))
        if UNPARSED in given:
            return Drop(reason="bad_arguments", detail=f"{event.tool}: {event.arguments[:80]}")
        recorded = Recorded(event.tool, arguments_text(given), event.result, event.warnings)
        status, _, detail = replayer.judge(recorded)
        if status != "match":
            return Drop(reason="replay_mismatch", detail=f"{event.tool}: {status}: {detail}")
        reply = replayer.reply(recorded.tool, recorded.arguments)
        turns.append(Turn(((event.tool, given),), (reply,)))
    last = (
        (RECOMMEND, {"product_ids": ",".join(product_ids(trajectory.answer))}),
        (TERMINATE, {"status": "success"}),
    )
    replies = tuple(replayer.reply(tool, arguments_text(given)) for tool, given in last)
    return (*turns, Turn(last, replies))


def _calls_before_the_answer(dispatches: Sequence[DispatchEvent]) -> list[DispatchEvent]:
    """Catalogue calls, and calls of tools that do not exist, up to the last recommendation."""
    places = [place for place, event in enumerate(dispatches) if event.tool == RECOMMEND]
    before = dispatches[: places[-1]] if places else dispatches
    return [event for event in before if event.tool not in (RECOMMEND, TERMINATE)]


def underivable(query: str, turns: Sequence[Turn]) -> Drop | None:
    """The first call that does not follow from the request and the replies before it."""
    prefix = Prefix(query)
    for number, turn in enumerate(turns, start=1):
        for tool, given in turn.calls:
            missing = prefix.missing(tool, given)
            if missing:
                detail = f"turn {number}, {tool}: {', '.join(missing[:5])}"
                return Drop(reason="underivable", detail=detail)
        for (tool, given), reply in zip(turn.calls, turn.replies, strict=True):
            prefix.add(tool, given, reply.result)
    return None


def ordered(tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Canonical arguments in the one order that rows have."""
    if tool not in CATALOGUE_TOOLS:
        return given
    first = {name: given[name] for name in KEY_ORDER if name in given}
    if "product_id" in given:
        first = {"product_id": given["product_id"], **first}
    return {**first, **{name: value for name, value in given.items() if name not in first}}


def arguments_text(given: dict[str, Any]) -> str:
    """Compact JSON, as the scripted models write it."""
    return json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def _thoughts(
    query: str, turns: Sequence[Turn], replayer: Replayer, rewriter: Rewriter
) -> list[str]:
    compact = replayer.world.config.rows == "compact"
    steps: tuple[Step, ...] = ()
    thoughts = []
    for turn in turns:
        moment = Moment(query=query, steps=steps, calls=turn.calls, compact=compact)
        thoughts.append(rewriter.thinking(moment))
        steps += tuple(
            Step(tool=tool, arguments=given, result=reply.result)
            for (tool, given), reply in zip(turn.calls, turn.replies, strict=True)
        )
    return thoughts


def _rewritten(
    source: Trajectory,
    turns: Sequence[Turn],
    thoughts: Sequence[str],
    replayer: Replayer,
    rewriter_id: str,
    config: SalvageConfig,
) -> Trajectory:
    world = replayer.world
    settings = harness_settings(world.config, config.tools)
    opening = [Message(role="user", content=source.query)]
    if settings.system:
        opening.insert(0, Message(role="system", content=settings.system))
    messages, events = _conversation(opening, turns, thoughts)
    agent = source.agent
    return Trajectory(
        trajectory_id=digest(["salvage", config, source.trajectory_id, rewriter_id])[7:39],
        problem_id=source.problem_id,
        query=source.query,
        kind=source.kind,
        agent=AgentRef(
            name=agent.name + AGENT_MARK,
            version=agent.version,
            kind=agent.kind,
            digest=agent.digest,
            model=rewriter_id,
        ),
        events=events,
        messages=messages,
        tools=settings.tools,
        answer=",".join(product_ids(source.answer)),
        ending=Ending.terminated,
        suite_id=source.suite_id,
        catalogue=world.catalogue.catalogue_id,
        catalogue_digest=world.catalogue.digest,
        isolation="salvage",
        eligible=False,
        seed=source.seed,
        attempt=source.attempt,
        source=SOURCE_MARK + source.trajectory_id,
        tool_version=__version__,
    )


def _conversation(
    opening: Sequence[Message], turns: Sequence[Turn], thoughts: Sequence[str]
) -> tuple[tuple[Message, ...], tuple[Event, ...]]:
    """Messages and, as a host would have recorded them, events; times are unknown and 0."""
    messages = list(opening)
    events: list[Event] = []
    done = calls = 0
    for turn, thought in zip(turns, thoughts, strict=True):
        made = []
        for tool, given in turn.calls:
            calls += 1
            function = FunctionCall(name=tool, arguments=arguments_text(given))
            made.append(ToolCall(id=f"call_{calls}", function=function))
        completion = Message(
            role="assistant",
            content="",
            reasoning_content=thought,
            tool_calls=tuple(made),
            rationalised=True,
        )
        seq = len(events)
        request = tuple(messages[done:])
        events.append(
            InferenceEvent(
                seq=seq, at_ms=0, duration_ms=0, prefix=done, request=request, completion=completion
            )
        )
        messages.append(completion)
        done = len(messages)
        for call, reply in zip(made, turn.replies, strict=True):
            events.append(_dispatch(len(events), seq, call, reply))
            content = tool_message(reply)
            messages.append(Message(role="tool", content=content, tool_call_id=call.id))
    return tuple(messages), tuple(events)


def _dispatch(seq: int, emitted_by: int, call: ToolCall, reply: ToolReply) -> DispatchEvent:
    return DispatchEvent(
        seq=seq,
        at_ms=0,
        duration_ms=0,
        tool=call.function.name,
        arguments=call.function.arguments,
        result=reply.result,
        call_id=call.id,
        emitted_by=emitted_by,
        error=reply.error,
        warnings=reply.warnings,
    )
