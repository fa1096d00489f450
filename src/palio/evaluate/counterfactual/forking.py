"""A recorded run goes on from one of its observations in a world that differs in one datum.

Up to the fork the record itself answers: its completions to the agent's requests, its results to
the agent's calls, byte for byte. The observation at the fork and all later ones come from the
edited world, and the model is asked again. Seeds, decoding, tools and limits are the run's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from palio.agents.harness import harness_settings
from palio.agents.spec import AgentSpec
from palio.broker.limits import Limits
from palio.broker.session import Session
from palio.broker.upstream import Upstream
from palio.judging.answers import answer_ids
from palio.records import Ending, InferenceEvent, Problem, Trajectory
from palio.rollout.problem import agent_ref, run_problem, run_session
from palio.sandbox.spec import Driver
from palio.world.arguments import canonical_arguments
from palio.world.tools import SEVEN_TOOLS, Toolbox, ToolReply
from palio.world.world import World

DECIDING = frozenset(
    {
        "find_product",
        "find_products_in_same_shop",
        "view_product_information",
        "check_product_match",
        "recommend_product",
    }
)
"""Calls that are decisions; what a voucher comes to is arithmetic on prices that were read."""
SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens")


class Decisions(NamedTuple):
    """What a run did from its fork on.

    Attributes:
        answer: recommended ids in order.
        path: deciding calls as (tool, canonical arguments), in order.
        emitted: for each of them, whether a completion asked for it.
    """

    answer: tuple[str, ...]
    path: tuple[tuple[str, str], ...]
    emitted: tuple[bool, ...]


class Forked(NamedTuple):
    """A run after its fork; `departed` says where it left the record before the fork, or ""."""

    run: Trajectory
    departed: str


class Forker:
    """Runs one agent, and its recorded runs again.

    Args:
        spec: the agent; its file must be the one that was recorded.
        upstream: who answers for its model after the fork.
        driver: how the agent's file is run.
        limits: of each run.
    """

    def __init__(
        self,
        spec: AgentSpec,
        upstream: Upstream | None,
        driver: Driver,
        limits: Limits | None = None,
    ) -> None:
        self.spec = spec
        self._upstream = upstream
        self._driver = driver
        self._limits = limits

    def record(self, problem: Problem, world: World, seed: int = 0) -> Trajectory:
        """The agent's run on a problem."""
        return run_problem(
            self.spec,
            problem,
            world,
            driver=self._driver,
            upstream=self._upstream,
            limits=self._limits,
            seed=seed,
        )

    def fork(self, run: Trajectory, at: int, tools: Toolbox, world: World) -> Forked:
        """The run again, with `tools` answering from its dispatch number `at` on."""
        fork_seq = run.dispatches[at].seq
        replies = [event for event in run.inferences if event.seq < fork_seq]
        recorded = _RecordedUpstream(replies, self._upstream)
        prefix = _PrefixTools(run, at, tools)
        session = Session(
            agent_ref(self.spec),
            problem_of(run),
            world,
            recorded,
            self._limits,
            run.seed,
            attempt=run.attempt,
            sampling=_sampling(run),
            settings=_settings(run, world),
            suite_id=run.suite_id,
            isolation=self._driver.capabilities.isolation,
            eligible=False,
            toolbox=prefix,
        )
        forked = run_session(self.spec.path, self._driver, session)
        return Forked(forked, prefix.departed or _departure(run, forked, fork_seq))


def _settings(run: Trajectory, world: World) -> dict[str, Any]:
    """What the harness was told: the recorded tools in full, or the world's own."""
    settings: dict[str, Any] = msgspec.to_builtins(harness_settings(world.config, SEVEN_TOOLS))
    return {**settings, "tools": list(run.tools)} if run.tools else settings


class _RecordedUpstream:
    """Gives the recorded completions in their order, then asks the model."""

    def __init__(self, replies: list[InferenceEvent], live: Upstream | None) -> None:
        self._replies = replies
        self._live = live
        self._given = 0

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One chat completion."""
        self._given += 1
        if self._given <= len(self._replies):
            return _response(self._replies[self._given - 1], body)
        if self._live is None:
            raise LookupError("this agent was recorded without a model")
        return self._live.complete(body)


def _response(event: InferenceEvent, body: Mapping[str, Any]) -> dict[str, Any]:
    assert event.completion is not None
    usage = event.usage
    return {
        "id": f"recorded-{event.seq}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", ""),
        "choices": [
            {
                "index": 0,
                "message": event.completion.to_openai(),
                "finish_reason": event.finish_reason or "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": usage.prompt_tokens or 0,
            "completion_tokens": usage.completion_tokens or 0,
            "total_tokens": (usage.prompt_tokens or 0) + (usage.completion_tokens or 0),
        },
    }


class _PrefixTools:
    """Recorded results up to the fork, then the edited world's."""

    def __init__(self, run: Trajectory, at: int, tools: Toolbox) -> None:
        self._events = run.dispatches[:at]
        self._tools = tools
        self._called = 0
        self.departed = ""

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolReply:
        """The reply to one call."""
        place = self._called
        self._called += 1
        if place >= len(self._events):
            return self._tools.call(name, arguments)
        event = self._events[place]
        if not self.departed and (name, _plain(name, arguments)) != (
            event.tool,
            _plain(event.tool, event.arguments),
        ):
            self.departed = f"call {place + 1} before the fork is another one"
        return ToolReply(result=event.result, warnings=event.warnings, error=event.error)


def problem_of(run: Trajectory) -> Problem:
    """As much of a problem as its agent ever sees; nothing that only a scorer knows."""
    return Problem(
        problem_id=run.problem_id,
        kind=run.kind,  # type: ignore[arg-type]
        query=run.query,
        rewards=(),
        catalogue=run.catalogue,
    )


def obstacle(run: Trajectory, spec: AgentSpec) -> str:
    """Why a run cannot be forked, "" if it can be."""
    if not spec.path:
        return "the agent's file is not at hand"
    if spec.ref.digest != run.agent.digest:
        return "the agent's file has changed since"
    if run.source != "rollout" or run.salvaged:
        return "not recorded by a broker"
    if why := broken(run):
        return why
    if any((event.params.get("temperature") or 0) > 0 for event in run.inferences):
        return "decoded at a temperature above 0"
    if not answer_ids(run.answer, "strict"):
        return "nothing was recommended"
    return ""


def broken(run: Trajectory) -> str:
    """What other than its agent's decisions made a run what it is, "" if nothing did.

    Asked of a record and of its forks: a server that has gone gives an empty answer, and an empty
    answer that differs from the record's is no decision.
    """
    if run.ending in (Ending.infra, Ending.timed_out) or run.fault is not None:
        return "the run ended by a fault or the clock"
    if any(event.completion is None for event in run.inferences):
        return "a completion failed"
    if any(event.fault is not None for event in run.dispatches):
        return "a call failed on the host's side or was over budget"
    return ""


def decisions(run: Trajectory, at: int, names: Mapping[str, str] | None = None) -> Decisions:
    """Decisions from dispatch number `at` on; what that one asked was decided before.

    Args:
        run: the run.
        at: place of the fork among its dispatches.
        names: id -> the id that it has in the record, for products that were renamed.
    """
    back = dict(names or {})
    answer = tuple(back.get(one, one) for one in answer_ids(run.answer, "strict"))
    events = [event for event in run.dispatches[at + 1 :] if event.tool in DECIDING]
    path = tuple((e.tool, _renamed(_plain(e.tool, e.arguments), back)) for e in events)
    return Decisions(answer, path, tuple(e.emitted_by is not None for e in events))


def emitted_departure(before: Decisions, after: Decisions) -> bool:
    """Whether a completion asked for the first decision that differs; False where none does."""
    for place, (one, other) in enumerate(zip(before.path, after.path, strict=False)):
        if one != other:
            return after.emitted[place]
    shared = min(len(before.path), len(after.path))
    longer = before if len(before.path) > shared else after
    return longer.emitted[shared] if len(longer.path) > shared else False


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for new, old in names.items():
        text = text.replace(new, old)
    return text


def _plain(tool: str, arguments: Mapping[str, Any] | str) -> str:
    given = canonical_arguments(tool, arguments)
    return msgspec.json.encode(given, order="sorted").decode("utf-8", "replace")


def _sampling(run: Trajectory) -> dict[str, Any]:
    params = run.inferences[0].params if run.inferences else {}
    return {name: params[name] for name in SAMPLING if name in params}


def _departure(run: Trajectory, forked: Trajectory, fork_seq: int) -> str:
    """Whether both records are equal before the fork: completions, calls and results."""
    if len(forked.events) <= fork_seq:
        return "the run ended before its fork"
    for one, other in zip(run.events[:fork_seq], forked.events[:fork_seq], strict=True):
        if isinstance(one, InferenceEvent) != isinstance(other, InferenceEvent):
            return f"event {one.seq} before the fork is of another kind"
        if isinstance(one, InferenceEvent) and isinstance(other, InferenceEvent):
            if one.completion != other.completion or one.request != other.request:
                return f"inference {one.seq} before the fork is another one"
        elif not isinstance(one, InferenceEvent) and not isinstance(other, InferenceEvent):
            mine = (one.tool, one.arguments, one.result)
            if mine != (other.tool, other.arguments, other.result):
                return f"dispatch {one.seq} before the fork is another one"
    return ""
