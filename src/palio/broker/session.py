"""The host writes the record of a run: what the agent did is what passed through here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from palio import __version__
from palio.broker.claim import compare_claim, shown_differences
from palio.broker.conversation import build_messages
from palio.broker.ending import decide_ending
from palio.broker.limits import ARGUMENT_BYTES, Limits
from palio.broker.record import Outcome, RunRecord, Span
from palio.broker.upstream import Upstream, ask, no_upstream
from palio.broker.wire import (
    argument_text,
    clean_text,
    load_json,
    plain_json,
    read_completion,
    read_messages,
    relayed,
)
from palio.records import (
    AgentRef,
    Ending,
    Fault,
    FaultCode,
    InputError,
    Message,
    PalioError,
    Problem,
    Trajectory,
    UpstreamError,
    trajectory_key,
)
from palio.world.tools import Toolbox, ToolReply, tool_schemas
from palio.world.world import World

Clock = Callable[[], float]
"""Seconds from any origin, never going back."""


RECORDED_REFUSALS = 5
"""Refused calls that stand in the record; a looping agent makes thousands a second."""


class RunOver(BaseException):
    """The run is closed or past its deadline.

    Not an `Exception`, so that an agent's ``except Exception`` cannot swallow it in process.
    """


class RefusedError(PalioError):
    """The request is not carried out: over budget, or not a chat request. Blame: the agent.

    Attributes:
        status: the HTTP status that the server answers, 400 or 403.
    """

    def __init__(self, what: str, *, status: int) -> None:
        super().__init__(what)
        self.status = status


class Ticket:
    """One inference in flight.

    Attributes:
        body: the request to send upstream.
    """

    __slots__ = ("body", "messages", "params", "started")

    def __init__(self, body: dict[str, Any], messages: list[Message], started: float) -> None:
        self.body = body
        self.messages = messages
        params = {key: value for key, value in body.items() if key not in ("messages", "tools")}
        self.params: dict[str, Any] = load_json(plain_json(params))
        self.started = started


class Session:
    """The record of one agent on one problem, safe to use from many threads.

    Args:
        agent: who runs; a request for model "default" gets `agent.model`.
        problem: what is asked; only `problem.public()` ever leaves the host.
        world: where tools act.
        upstream: who answers chat completions, None for agents without a model.
        seed: sent upstream with every request that names none.
        clock: seconds, for durations and the deadline.
        sampling: parameters added to requests that lack them.
        settings: what GET /tools tells the policy harness (tools, max_steps, system); None: the
            seven tools and the world's step limit.
    """

    def __init__(
        self,
        agent: AgentRef,
        problem: Problem,
        world: World,
        upstream: Upstream | None = None,
        limits: Limits | None = None,
        seed: int = 0,
        clock: Clock = time.monotonic,
        *,
        attempt: int = 0,
        sampling: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        suite_id: str = "",
        isolation: str = "none",
        eligible: bool = True,
    ) -> None:
        self.agent = agent
        self.problem = problem
        self.world = world
        self.upstream: Upstream = upstream if upstream is not None else no_upstream
        self.limits = limits or Limits()
        self.seed = seed
        self.attempt = attempt
        self.suite_id = suite_id
        self.isolation = isolation
        self.eligible = eligible
        self._clock = clock
        self._started = clock()
        self._sampling = dict(sampling or {})
        self._settings = settings
        self._toolbox = Toolbox(world)
        self._lock = threading.RLock()
        self._record = RunRecord(self.limits)
        self._pending: dict[int, Ticket] = {}
        self._refusals = 0
        self._closed: Trajectory | None = None

    @property
    def trajectory_id(self) -> str:
        """The id of this run, known before it is run."""
        return trajectory_key(
            agent=self.agent,
            problem_id=self.problem.problem_id,
            catalogue_digest=self.world.catalogue.digest,
            seed=self.seed,
            attempt=self.attempt,
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the policy harness is told of the run: tools, max_steps, system."""
        if self._settings is not None:
            return self._settings
        return {"tools": tool_schemas(), "max_steps": self.world.config.max_steps, "system": ""}

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, never below 0."""
        return max(0.0, self.limits.seconds - (self._clock() - self._started))

    @property
    def flooding(self) -> bool:
        """Whether so many calls were refused that more of them are not even recorded."""
        return self._refusals > RECORDED_REFUSALS

    def status(self) -> dict[str, Any]:
        """What the agent may know of its run: budget left, seconds left, the world's rules."""
        with self._lock:
            left: dict[str, Any] = dict(self._record.spent.left())
        left["seconds"] = round(self.remaining_s, 3)
        config = self.world.config
        return {"left": left, "world": config.name, "max_steps": config.max_steps}

    def dispatch(
        self, tool: str, arguments: Mapping[str, Any] | str, call_id: str = ""
    ) -> ToolReply:
        """Carry out one tool call and record it. Errors are observations, never exceptions.

        Raises:
            RunOver: the run is closed or past its deadline.
        """
        started = self._check_open()
        tool, call_id = clean_text(tool)[:200], clean_text(call_id)[:200]
        try:
            text = argument_text(arguments)
        except InputError as error:
            text, refusal = "", error.what
        else:
            refusal = self._admit(text)
        if refusal:
            return self._refuse(tool, text[:2000], call_id, refusal, started)
        fault = None
        try:
            reply = self._toolbox.call(tool, text)
        except Exception as error:  # noqa: BLE001 - the world's bug is not charged to the agent
            fault = Fault(
                code=FaultCode.catalogue_unavailable,
                what=f"{tool} failed: {type(error).__name__}: {error}"[:300],
            )
            reply = _error_reply("the tool failed on the host's side, try again")
        with self._lock:
            span = self._span(started)
            self._record.add_dispatch(tool, text, reply, span, call_id=call_id, fault=fault)
        return reply

    def _admit(self, text: str) -> str:
        if len(text) > ARGUMENT_BYTES:
            return f"arguments longer than {ARGUMENT_BYTES} characters are refused"
        with self._lock:
            return self._record.admit_call(len(text))

    def _refuse(
        self, tool: str, text: str, call_id: str, refusal: str, started: float
    ) -> ToolReply:
        """Only the first refusals are recorded: an agent in a loop must not fill the disk."""
        reply = _error_reply(refusal)
        with self._lock:
            span = self._span(started)
            self._refusals += 1
            if self._refusals <= RECORDED_REFUSALS:
                fault = self._record.exhausted if refusal.startswith("budget") else None
                self._record.add_dispatch(tool, text, reply, span, call_id=call_id, fault=fault)
        return reply

    def begin_inference(self, body: Any) -> Ticket:
        """Admit one chat completion request.

        Raises:
            RefusedError: over budget, or not a chat request.
            RunOver: the run is closed or past its deadline.
        """
        started = self._check_open()
        if not isinstance(body, Mapping):
            raise RefusedError("a chat request must be a JSON object", status=400)
        if body.get("n") not in (None, 1):
            raise RefusedError("`n` must be 1: one completion a request is recorded", status=400)
        with self._lock:
            try:
                messages = read_messages(body.get("messages"))
                self._record.offer(body.get("tools"))
                ticket = Ticket(self._upstream_body(body), messages, started)
            except InputError as error:
                raise RefusedError(str(error), status=400) from error
            refusal = self._record.admit_inference(messages)
            if refusal:
                raise RefusedError(refusal, status=403)
            self._pending[id(ticket)] = ticket
        return ticket

    def _upstream_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        sent = {**self._sampling, **body}
        sent.pop("stream", None)
        sent.pop("stream_options", None)
        sent.setdefault("seed", self.seed)
        if sent.get("model") in (None, "", "default"):
            sent["model"] = self.agent.model or "default"
        return sent

    def finish_inference(self, ticket: Ticket, answer: Any) -> dict[str, Any]:
        """Record how the request of `ticket` ended and give what the agent gets.

        Args:
            ticket: what `begin_inference` gave.
            answer: the upstream's response, or the error that it raised.

        Raises:
            PalioError: `answer`, if it is an error; or `UpstreamError` if it is no completion.
            RunOver: the run was closed or its deadline passed meanwhile.
        """
        error: PalioError | None = answer if isinstance(answer, PalioError) else None
        outcome = Outcome(finish="rejected")
        if error is None:
            try:
                outcome = Outcome(*read_completion(answer))
            except UpstreamError as found:
                error = found
        if isinstance(error, UpstreamError):
            fault = Fault(code=error.code, what=str(error)[:500], remedy=error.remedy)
            outcome = Outcome(fault=fault)
        with self._lock:
            span = self._span(ticket.started)
            self._pending.pop(id(ticket), None)
            self._record.add_inference(ticket.messages, ticket.params, outcome, span)
        if error is not None:
            raise error
        return relayed(answer)

    def complete(self, body: Any) -> dict[str, Any]:
        """One chat completion through the record, for callers in this process.

        Raises:
            RefusedError, UpstreamError, RunOver: see begin_inference and finish_inference.
        """
        ticket = self.begin_inference(body)
        return self.finish_inference(ticket, ask(self.upstream, ticket.body))

    def close(
        self, ending: Ending | None = None, fault: Fault | None = None, claim: Any = None
    ) -> Trajectory:
        """End the run and give its record; closing again gives the same record.

        Args:
            ending: how the host saw it end; None: the agent returned, and the record decides
                between terminated, step_limit and returned.
            fault: what went wrong, None when nothing did.
            claim: the dialogue that the agent returned, None when there is none.
        """
        with self._lock:
            if self._closed is None:
                self._closed = self._make_trajectory(ending, fault, claim)
            return self._closed

    def _make_trajectory(
        self, ending: Ending | None, fault: Fault | None, claim: Any
    ) -> Trajectory:
        now = self._clock()
        record = self._record
        for ticket in self._pending.values():
            span = Span(ticket.started - self._started, now - self._started)
            outcome = Outcome(finish="pending", fault=self._stalled(span))
            record.add_inference(ticket.messages, ticket.params, outcome, span)
        self._pending.clear()
        events = record.events
        report = compare_claim(claim, events, record.answer)
        terminated = record.terminated or report.terminated
        ending, fault = decide_ending(
            ending,
            fault,
            events,
            terminated=terminated,
            answered=report.answer is not None,
            exhausted=record.exhausted,
            max_steps=self.world.config.max_steps,
        )
        return Trajectory(
            trajectory_id=self.trajectory_id,
            problem_id=self.problem.problem_id,
            query=self.problem.query,
            kind=self.problem.kind,
            agent=self.agent,
            events=events,
            messages=build_messages(self.problem.query, events),
            tools=record.tools,
            answer=report.answer,
            ending=ending,
            fault=fault,
            differences=(*report.differences, *shown_differences(events)),
            suite_id=self.suite_id,
            catalogue=self.world.catalogue.catalogue_id,
            catalogue_digest=self.world.catalogue.digest,
            isolation=self.isolation,
            eligible=self.eligible,
            seed=self.seed,
            attempt=self.attempt,
            duration_s=round(now - self._started, 6),
            tool_version=__version__,
        )

    def _stalled(self, span: Span) -> Fault | None:
        """A reply that took half of the whole run and never came is the platform's fault."""
        waited = span.end - span.start
        if waited < self.limits.seconds / 2:
            return None
        return Fault(
            code=FaultCode.upstream_timed_out,
            what=f"the model server had not answered after {waited:.1f} s when the run ended",
            remedy="give the upstream a time-out well below the run's",
        )

    def _check_open(self) -> float:
        """Now, or RunOver."""
        now = self._clock()
        if self._closed is not None:
            raise RunOver("the run is closed")
        if now - self._started > self.limits.seconds:
            raise RunOver(f"the run's {self.limits.seconds:g} s are over")
        return now

    def _span(self, started: float) -> Span:
        """From `started` until now, in seconds of the run; raises RunOver like `_check_open`."""
        return Span(started - self._started, self._check_open() - self._started)


def _error_reply(what: str) -> ToolReply:
    return ToolReply(result=plain_json({"error": what}), error=what)
