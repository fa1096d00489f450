"""One interface for every way to isolate an agent: what to run, what came of it, what it holds."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Literal, Protocol, get_args

from palio.broker.session import Session
from palio.records import Ending, Fault, FaultCode, Record

Capability = Literal[
    "process",
    "network",
    "files",
    "processes",
    "memory",
    "pids",
    "disk",
    "kernel",
    "fixed",
    "ranked",
]
STRANGERS: tuple[Capability, ...] = get_args(Capability)
"""What code of strangers requires: all of it."""
Reason = Literal["exited", "timeout", "oom", "output_limit", "launch_failed", "killed"]


class SandboxLimits(Record, frozen=True, omit_defaults=False):
    """What one sandbox may use.

    Attributes:
        seconds: wall clock from launch to the end of the whole process tree.
        result_bytes: longest return value, as JSON; real dialogues stay under 1 MB.
        output_bytes: stdout and stderr kept, each; more is read and dropped, never stored.
        flood_bytes: stdout and stderr read, each; a sandbox that writes more is stopped.
        memory_bytes: of all its processes together.
        pids: processes and threads.
        open_files: descriptors of each process.
        file_bytes: longest file.
        tmp_bytes: all files in /tmp.
        shm_bytes: all files in /dev/shm.
        inodes: files, folders and links, in /tmp and in /dev/shm each.
    """

    seconds: float = 300.0
    result_bytes: int = 16_000_000
    output_bytes: int = 64 * 1024
    flood_bytes: int = 256_000_000
    memory_bytes: int = 512 << 20
    pids: int = 64
    open_files: int = 256
    file_bytes: int = 32 << 20
    tmp_bytes: int = 64 << 20
    shm_bytes: int = 16 << 20
    inodes: int = 10_000


class SandboxSpec(Record, frozen=True):
    """One problem for one agent.

    Attributes:
        agent: path of the agent file.
        problem: the public fields of the problem, the only thing the agent is told.
        seed: the run's seed; in a fresh interpreter all that Python code sees of chance follows
            from it.
    """

    agent: str
    problem: dict[str, str]
    limits: SandboxLimits = SandboxLimits()
    seed: int = 0


class SandboxUsage(Record, frozen=True):
    """What a sandbox used; None where the driver cannot tell.

    Attributes:
        peak_rss_mb: most memory that was seen at once in the whole tree, MiB.
        kill_s: from the decision to end it until its last process was gone.
    """

    wall_s: float
    cpu_s: float | None = None
    peak_rss_mb: float | None = None
    result_bytes: int = 0
    output_bytes: int = 0
    kill_s: float | None = None


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
        files: only the agent's own folder can be seen, and nothing of the host can be written.
        processes: no process of the host can be seen or signalled.
        memory, pids, disk: the resource is capped for the whole process tree.
        kernel: system calls that agents have no use for are refused.
        fixed: host name, and clock and chance as Python sees them, are the same in every run.
        ranked: trajectories made with it may count in standings.
    """

    isolation: str
    process: bool = False
    network: bool = False
    files: bool = False
    processes: bool = False
    memory: bool = False
    pids: bool = False
    disk: bool = False
    kernel: bool = False
    fixed: bool = False
    ranked: bool = False

    def lacking(self, required: Iterable[Capability]) -> tuple[Capability, ...]:
        """The required ones that this driver does not have."""
        return tuple(name for name in required if not getattr(self, name))


class Driver(Protocol):
    """Runs agents; safe to use from many threads. See `palio.sandbox.choice` for all of them."""

    @property
    def capabilities(self) -> Capabilities:
        """What this driver encloses."""

    def run(
        self, spec: SandboxSpec, session: Session | None, stop: threading.Event | None = None
    ) -> SandboxOutcome:
        """Run one agent on one problem; `stop` set means: kill it now (reason "killed").

        Without a session there is no door: nothing at all can be reached.

        Never raises for what an agent or the machine does; a sandbox that cannot be started is
        reason "launch_failed" with a fault blamed on the validator.
        """
