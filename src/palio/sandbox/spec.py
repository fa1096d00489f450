"""One interface for every way to isolate an agent: what to run, what came of it, what it holds."""

from __future__ import annotations

import threading
from typing import Any, Literal, Protocol

from palio.broker.session import Session
from palio.records import Ending, Fault, FaultCode, Record

Reason = Literal["exited", "timeout", "oom", "output_limit", "launch_failed", "killed"]


class SandboxLimits(Record, frozen=True, omit_defaults=False):
    """What one sandbox may use.

    Attributes:
        seconds: wall clock from launch to the end of the whole process tree.
        result_bytes: longest return value, as JSON; real dialogues stay under 1 MB.
        output_bytes: stdout and stderr kept, each; more is read and dropped, never stored.
    """

    seconds: float = 300.0
    result_bytes: int = 16_000_000
    output_bytes: int = 64 * 1024


class SandboxSpec(Record, frozen=True):
    """One problem for one agent.

    Attributes:
        agent: path of the agent file.
        problem: the public fields of the problem, the only thing the agent is told.
        seed: the run's seed; drivers that start a fresh interpreter seed `random` with it.
    """

    agent: str
    problem: dict[str, str]
    limits: SandboxLimits = SandboxLimits()
    seed: int = 0


class SandboxUsage(Record, frozen=True):
    """What a sandbox used; None where the driver cannot tell."""

    wall_s: float
    cpu_s: float | None = None
    peak_rss_mb: float | None = None
    result_bytes: int = 0
    output_bytes: int = 0


class SandboxOutcome(Record, frozen=True):
    """How a sandbox ended, as the host saw it.

    Attributes:
        reason: "exited" also when the agent raised or returned nonsense; `fault` says so.
        claim: the list that agent_main returned, None when there is none.
        fault: what went wrong and who is to blame; None when agent_main returned a list.
        stdout, stderr: the first bytes of each, for people; never evidence.
    """

    reason: Reason
    usage: SandboxUsage
    claim: Any = None
    fault: Fault | None = None
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""

    @property
    def ending(self) -> Ending | None:
        """The ending that the host saw; None when the record decides."""
        if self.fault is None:
            return None
        if self.fault.code in (FaultCode.agent_bad_source, FaultCode.agent_bad_return):
            return Ending.invalid
        if self.fault.code == FaultCode.agent_output_limit:
            return Ending.invalid
        return Ending.timed_out if self.fault.code == FaultCode.agent_timed_out else Ending.crashed


class Capabilities(Record, frozen=True):
    """What a driver really encloses; an arena states what it requires and fails closed.

    Attributes:
        isolation: the brand on every trajectory, e.g. "none", "inline", "bwrap".
        process: the agent runs in a process of its own.
        network: only the broker can be reached.
        files: only the agent's own folder can be seen.
        memory, pids, disk: the resource is capped for the whole process tree.
        ranked: trajectories made with it may count in standings.
    """

    isolation: str
    process: bool = False
    network: bool = False
    files: bool = False
    memory: bool = False
    pids: bool = False
    disk: bool = False
    ranked: bool = False


class Driver(Protocol):
    """Runs agents; safe to use from many threads. Later drivers: bwrap, oci, docker."""

    @property
    def capabilities(self) -> Capabilities:
        """What this driver encloses."""

    def run(
        self, spec: SandboxSpec, session: Session, stop: threading.Event | None = None
    ) -> SandboxOutcome:
        """Run one agent on one problem; `stop` set means: kill it now (reason "killed").

        Never raises for what an agent or the machine does; a sandbox that cannot be started is
        reason "launch_failed" with a fault blamed on the validator.
        """


def agent_fault(code: FaultCode, what: str, remedy: str = "") -> Fault:
    """A fault of the agent; the text is cut to what a table can show."""
    return Fault(code=code, what=what[:500], remedy=remedy)
