"""The host writes the record of a run: what the agent did is what passed through here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palio.broker.closing import pending_fault, run_trajectory
from palio.broker.hangup import asked_within
from palio.broker.journal import RunJournal, packed
from palio.broker.keeping import Keeper, Ticket
from palio.broker.limits import ARGUMENT_BYTES, Limits
from palio.broker.nonce import Mint, NoncePolicy, Proof, unveiled, veiled
from palio.broker.record import NO_PROOF, Outcome, RunRecord, Span
from palio.broker.refusals import RefusedError, RunOver
from palio.broker.relay import RelayPolicy, turn_seed, upstream_body
from palio.broker.upstream import Upstream, ask, no_upstream, scoped
from palio.broker.wire import (
    argument_text,
    clean_text,
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
    PalioError,
    Problem,
    Trajectory,
    UpstreamError,
    trajectory_key,
)
from palio.world.execution import ExecutionUnavailableError
from palio.world.tools import Toolbox, ToolReply, tool_schemas
from palio.world.world import World


class ToolCaller(Protocol):
    """Carries out tool calls; see `palio.world.tools.Toolbox`."""

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolReply:
        """The reply; what the agent did wrong stands in it."""


Clock = Callable[[], float]
"""Seconds from any origin, never going back."""


RECORDED_REFUSALS = 5
"""Refused calls that stand in the record; a looping agent makes thousands a second."""


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
        relay: which models the agent may ask.
        nonces: what is done with proofs of who emitted a call.
        journal: where every body is written before it is acted on; None: only the record is kept.
        mint: a replay's own.
        toolbox: who carries out tool calls; None: the world's tools, which run no code.
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
        relay: RelayPolicy | None = None,
        nonces: NoncePolicy | None = None,
        journal: RunJournal | None = None,
        mint: Mint | None = None,
        toolbox: ToolCaller | None = None,
    ) -> None:
        self.agent = agent
        self.problem = problem
        self.world = world
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
        self._toolbox: ToolCaller = toolbox or Toolbox(world)
        self._lock = threading.RLock()
        self.relay = relay or RelayPolicy()
        self.mint = mint or Mint(nonces or NoncePolicy(), self.trajectory_id)
        self._record = RunRecord(self.limits, problem.query, self.mint)
        self._keeper = Keeper(journal)
        self.upstream: Upstream = scoped(upstream or no_upstream, self.trajectory_id)
        self._pending: dict[int, Ticket] = {}
        self._refusals = 0
        self._closed: Trajectory | None = None
        self._keeper.opened(self, self._sampling)

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
        self, tool: str, arguments: Mapping[str, Any] | str, call_id: str = "", nonce: str = ""
    ) -> ToolReply:
        """Carry out one tool call and record it. Errors are observations, never exceptions.

        Args:
            tool: name of the tool.
            arguments: argument JSON as received, or an object.
            call_id: the id of the call as the agent was shown it, which is its proof too.
            nonce: the proof, when it was sent beside the id.

        Raises:
            RunOver: the run is closed or past its deadline, or its record cannot be written.
        """
        started = self._check_open()
        tool, call_id = clean_text(tool)[:200], clean_text(call_id)[:200]
        nonce = clean_text(nonce)[:200]
        try:
            text = argument_text(arguments)
        except InputError as error:
            text, refusal = "", error.what
        else:
            refusal = self._admit(text)
        if refusal:
            return self._refuse(tool, text[:2000], call_id, refusal, started)
        with self._lock:
            now = started - self._started
            proof = self._record.prove(tool, text, nonce, call_id, now)
            own_id = self.mint.own_id(call_id)
            number = self._keeper.call(tool, text, call_id, nonce, now)
        reply, fault = self._carried_out(tool, text, proof)
        self._recorded(number, tool, text, reply, started, call_id=own_id, fault=fault, proof=proof)
        return reply

    def _carried_out(self, tool: str, text: str, proof: Proof) -> tuple[ToolReply, Fault | None]:
        if self.mint.policy.mode == "strict" and proof.status != "valid":
            what = f"refused: this call has no valid proof that the model asked for it ({proof[0]})"
            return _error_reply(what), None
        try:
            return self._toolbox.call(tool, text), None
        except Exception as error:  # noqa: BLE001 - the world's bug is not charged to the agent
            sandboxed = isinstance(error, ExecutionUnavailableError)
            fault = Fault(
                code=FaultCode.sandbox_launch_failed
                if sandboxed
                else FaultCode.catalogue_unavailable,
                what=f"{tool} failed: {type(error).__name__}: {error}"[:300],
            )
            return _error_reply("the tool failed on the host's side, try again"), fault

    def _recorded(
        self, number: int, tool: str, text: str, reply: ToolReply, started: float, **more: Any
    ) -> None:
        with self._lock:
            event = self._record.add_dispatch(tool, text, reply, self._span(started), **more)
            self._keeper.result(number, event)

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
            self._refusals += 1
            if self._refusals <= RECORDED_REFUSALS:
                number = self._keeper.call(tool, text, call_id, "", started - self._started)
                fault = self._record.exhausted if refusal.startswith("budget") else None
                more = {"call_id": self.mint.own_id(call_id), "fault": fault, "proof": NO_PROOF}
                self._recorded(number, tool, text, reply, started, **more)
        return reply

    def begin_inference(self, body: Any) -> Ticket:
        """Admit one chat completion request and write it down.

        Raises:
            RefusedError: over budget, no chat request, or a model that is not allowed.
            RunOver: the run is closed or past its deadline, or its record cannot be written.
        """
        started = self._check_open()
        if not isinstance(body, Mapping):
            raise RefusedError("a chat request must be a JSON object", status=400)
        if body.get("n") not in (None, 1):
            raise RefusedError("`n` must be 1: one completion a request is recorded", status=400)
        with self._lock:
            asked = {**body, "messages": unveiled(body.get("messages"), self.mint.own_id)}
            try:
                messages = read_messages(asked["messages"])
                self._record.offer(body.get("tools"))
                ticket = Ticket(self._upstream_body(asked), messages, started)
            except InputError as error:
                raise RefusedError(str(error), status=400) from error
            tools = len(packed(body["tools"])) if "tools" in body else 0
            refusal = self._record.admit_inference(messages, ticket.beside, tools)
            if refusal:
                raise RefusedError(refusal, status=403)
            self._keeper.request(ticket, asked, started - self._started)
            self._pending[id(ticket)] = ticket
        return ticket

    def _upstream_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return upstream_body(
            body,
            own_model=self.agent.model,
            policy=self.relay,
            sampling=self._sampling,
            seed=turn_seed(self.seed, self._record.spent.inferences),
        )

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
            event, minted = self._record.add_inference(
                ticket.messages, ticket.params, outcome, span
            )
            self._keeper.response(
                ticket,
                answer,
                event=event.seq,
                at_ms=span.at_ms,
                expiry=[each.expiry_ms for each in minted],
            )
        if error is not None:
            raise error
        return veiled(relayed(answer), minted)

    def complete(self, body: Any) -> dict[str, Any]:
        """One chat completion through the record, for callers in this process.

        Raises:
            RefusedError, UpstreamError, RunOver: see begin_inference and finish_inference.
        """
        ticket = self.begin_inference(body)
        return self.finish_inference(ticket, self.ask_upstream(ticket))

    def ask_upstream(self, ticket: Ticket) -> dict[str, Any] | PalioError:
        """What the upstream says or fails with; a model server is asked until the deadline at most.

        What had not come by then is judged when the run is closed, see `pending_fault`.
        """
        with asked_within(lambda: self.remaining_s):
            return ask(self.upstream, ticket.body)

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
        now = self._clock() - self._started
        record = self._record
        for ticket in self._pending.values():
            span = Span(ticket.started - self._started, now)
            stalled = pending_fault(span, self.limits.seconds)
            outcome = Outcome(finish="pending", fault=stalled)
            record.add_inference(ticket.messages, ticket.params, outcome, span)
        self._pending.clear()
        seconds = round(now, 6)
        if self._keeper.fault is None:
            made = run_trajectory(self, record, ending, fault, claim, seconds)
            kept = self._keeper.closed(made, ending, fault, claim)
            if kept is not None:
                return kept
        return run_trajectory(self, record, Ending.infra, self._keeper.fault, claim, seconds)

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
