"""A session writes down what it is about to do before it does it, or the run is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palio.broker.facts import RunFacts
from palio.broker.journal import RunJournal
from palio.broker.refusals import RunOver
from palio.broker.upstream import error_fields
from palio.broker.wire import clean_value, load_json, plain_json
from palio.records import Ending, Fault, FaultCode, Message, PalioError, Trajectory, digest


class Ticket:
    """One inference in flight.

    Attributes:
        body: the request to send upstream.
        params: what of it is neither messages nor tools; `beside` is its length as JSON.
        number: its id in the journal.
    """

    __slots__ = ("beside", "body", "messages", "number", "params", "started")

    def __init__(self, body: dict[str, Any], messages: list[Message], started: float) -> None:
        self.body = body
        self.messages = messages
        params = {key: value for key, value in body.items() if key not in ("messages", "tools")}
        text = plain_json(params)
        self.beside = len(text)
        self.params: dict[str, Any] = clean_value(load_json(text)) or {}
        self.started = started
        self.number = 0


class Keeper:
    """The journal of one session, or none; its session holds the lock.

    Attributes:
        fault: why the record could not be written, None as long as it could.
    """

    def __init__(self, journal: RunJournal | None) -> None:
        self._journal = journal
        self.fault: Fault | None = None

    def opened(self, run: RunFacts, sampling: Mapping[str, Any]) -> None:
        """Write everything that a run is made with: what a replay needs to make it again."""
        if self._journal is None:
            return
        catalogue, mint = run.world.catalogue, run.mint
        self._note(
            "open",
            trajectory_id=run.trajectory_id,
            agent=run.agent,
            problem=run.problem,
            catalogue={"id": catalogue.catalogue_id, "digest": catalogue.digest},
            world=run.world.config,
            limits=run.limits,
            seed=run.seed,
            attempt=run.attempt,
            sampling=sampling,
            settings=run.settings,
            suite_id=run.suite_id,
            isolation=run.isolation,
            eligible=run.eligible,
            relay=run.relay,
            nonces=mint.policy,
            nonce_key=mint.key.hex(),
        )

    def request(self, ticket: Ticket, asked: Mapping[str, Any], now_s: float) -> None:
        """Write a request before it is sent."""
        if self._journal is None:
            return
        ticket.number = self._journal.number()
        try:
            self._journal.request(ticket.number, _ms(now_s), asked, ticket.params)
        except OSError as error:
            raise self._lost(error) from error

    def response(self, ticket: Ticket, answer: Any, **facts: Any) -> None:
        """Write what came back before the agent gets it."""
        if self._journal is not None:
            failed = isinstance(answer, PalioError)
            got = {"error": error_fields(answer)} if failed else {"body": answer}
            self._note("response", id=ticket.number, **facts, **got)

    def call(self, tool: str, arguments: str, call_id: str, nonce: str, now_s: float) -> int:
        """Write a tool call before it is carried out; its id."""
        if self._journal is None:
            return 0
        number = self._journal.number()
        fields = {"tool": tool, "arguments": arguments, "call_id": call_id, "nonce": nonce}
        self._note("call", id=number, at_ms=_ms(now_s), **fields)
        return number

    def result(self, number: int, event: Any) -> None:
        """Write what a call gave before the agent gets it."""
        self._note("result", id=number, event=event)

    def closed(
        self, made: Trajectory, ending: Ending | None, fault: Fault | None, claim: Any
    ) -> Trajectory | None:
        """Write the end and wait for the disk; the trajectory with its digest, None if it failed.

        Args:
            made: the run.
            ending: how the host saw it end.
            fault: what it saw go wrong.
            claim: what the agent returned.
        """
        if self._journal is None or self.fault is not None:
            return made
        facts = {"ending": ending, "fault": fault, "claim": claim, "trajectory": digest(made)}
        try:
            return msgspec.structs.replace(made, journal=self._journal.finish(**facts))
        except OSError as error:
            self._lost(error)
            return None

    def _note(self, kind: str, **fields: Any) -> None:
        if self._journal is None:
            return
        try:
            self._journal.write(kind, **fields)
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> RunOver:
        self.fault = Fault(
            code=FaultCode.record_unwritable,
            what=f"the journal cannot be written: {error}"[:300],
            remedy="free disk space, then resume the run",
        )
        return RunOver("the record of this run cannot be written")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
