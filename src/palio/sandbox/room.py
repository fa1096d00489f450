"""What all drivers with processes of their own share: a broker, a door for each run, an end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from palio.broker.server import BrokerServer, Served
from palio.broker.session import Session
from palio.sandbox.child import Child, Launch, launch_failed
from palio.sandbox.guestfiles import agent_source
from palio.sandbox.report import Report, bad_source
from palio.sandbox.spec import SandboxOutcome, SandboxSpec, SandboxUsage


class Door:
    """The host's half of one run's door: whatever comes in on its socket is this session's."""

    def __init__(self, server: BrokerServer, session: Session | None) -> None:
        self._server = server
        self._session = session
        self._served: Served | None = None

    def admit(self, listener: socket.socket | None) -> None:
        """Serve the guest's listening socket from now on.

        Raises:
            OSError: the guest gave none where one is needed, or the broker does not run.
        """
        if self._session is None:
            if listener is not None:
                listener.close()
            return
        if listener is None:
            raise OSError("the guest handed over no listening socket")
        try:
            self._served = self._server.serve(self._session, listener)
        except OSError:
            listener.close()
            raise

    def close(self) -> None:
        """Nothing of the run is carried out any more."""
        if self._served is not None:
            self._served.close()
            self._served = None


class Begin(NamedTuple):
    """What one run begins with.

    Attributes:
        spec, session: see `Driver.run`.
        source: the agent's file, as it was read once.
    """

    spec: SandboxSpec
    session: Session | None
    source: bytes


class Room(ABC):
    """Base of the drivers: the broker that their agents talk to, and one run from door to end.

    Args:
        server: None: one of its own, started when it is needed and stopped by `close`.
        clock: seconds, for the wall clock limit.
    """

    def __init__(
        self, server: BrokerServer | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._own = server is None
        self.server = server or BrokerServer()
        self.clock = clock

    def close(self) -> None:
        """Stop the broker if it is this driver's own."""
        if self._own:
            self.server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, spec: SandboxSpec, session: Session | None, stop: threading.Event | None = None
    ) -> SandboxOutcome:
        """See `Driver.run`."""
        try:
            source = agent_source(spec.agent)
        except OSError as error:
            return self._refused(bad_source(f"the agent file cannot be read: {error}"))
        with contextlib.ExitStack() as stack:
            try:
                child = Child(
                    self.launch(Begin(spec, session, source), stack), spec.limits, self.clock
                )
            except OSError as error:
                return launch_failed(f"the sandbox cannot be started: {error}")
            return self._unless_broken(child.watch(stop), session)

    @abstractmethod
    def launch(self, begin: Begin, stack: contextlib.ExitStack) -> Launch:
        """How this driver starts and ends the run's sandbox.

        Args:
            begin: what is run.
            stack: undone when the run is over, or when it cannot begin.

        Raises:
            OSError: it cannot be started; no fault of the agent.
        """

    @contextlib.contextmanager
    def door(self, session: Session | None) -> Iterator[Door]:
        """A door that is shut at the end."""
        if session is not None:
            self.server.start()
        door = Door(self.server, session)
        try:
            yield door
        finally:
            door.close()

    def _unless_broken(self, outcome: SandboxOutcome, session: Session | None) -> SandboxOutcome:
        """The outcome, unless the broker died under it: that is no agent's fault."""
        if session is None or self.server.alive:
            return outcome
        return launch_failed("the broker died during the run")

    @staticmethod
    def _refused(report: Report) -> SandboxOutcome:
        """The agent's file is no agent; nothing was started."""
        return SandboxOutcome(
            reason="exited", usage=SandboxUsage(wall_s=0.0), claim=report.claim, fault=report.fault
        )
