"""One sandboxed process tree from launch to last process: drained, watched, ended as a whole."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from palio.records import Fault, FaultCode
from palio.sandbox.control import Control
from palio.sandbox.report import Report, crashed, overran, read_report, timed_out, too_much
from palio.sandbox.spec import Reason, SandboxLimits, SandboxOutcome, SandboxUsage
from palio.sandbox.watchdog import Finding, Watchdog

POLL_S = 0.04
"""How soon a `stop` is noticed: with the kill itself under 100 ms."""
LAUNCH_S = 30.0
"""Longest wait for the guest's greeting; 10 ms on an idle machine."""
REPORT_SLACK = 64 * 1024
"""Bytes of a report beside the claim."""

Admit = Callable[[socket.socket | None], None]


@dataclass(frozen=True)
class Launch:
    """How a driver starts, watches and ends one sandbox.

    Attributes:
        argv: the launcher's command line.
        control: its control socket.
        task: what the guest is told.
        admit: called with the guest's listening socket before the agent runs.
        kill: ends the whole tree, given the launcher's id and a pidfd of the topmost sandboxed
            process (None before the greeting), and returns when it is gone.
        environment: of the launcher.
        folder: where the launcher runs.
        fds: descriptors that it inherits.
        root: topmost sandboxed process, given the launcher's id; 0: nothing to watch.
        mounts: what the sandbox can write to.
    """

    argv: Sequence[str]
    control: Control
    task: bytes
    admit: Admit
    kill: Callable[[int, int | None], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    fds: tuple[int, ...] = ()
    root: Callable[[int], int] = lambda _: 0
    mounts: tuple[str, ...] = ()


class _Stream:
    """One pipe of the child: keeps the first `cap` bytes, counts and drops the rest."""

    def __init__(self, fd: int, cap: int) -> None:
        self.fd = fd
        self.cap = cap
        self.size = 0
        self.open = True
        self._parts: list[bytes] = []
        os.set_blocking(fd, False)

    def drain(self) -> None:
        """Read what is there now."""
        while self.open:
            try:
                data = os.read(self.fd, 1 << 18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.open = False
                return
            if self.size < self.cap:
                self._parts.append(data[: self.cap - self.size])
            self.size += len(data)
            if self.size > self.cap:
                return  # let the caller look at the limit before more is read

    def data(self) -> bytes:
        return b"".join(self._parts)

    def text(self) -> str:
        return self.data().decode("utf-8", "replace").replace("\x00", "\ufffd")


class Child:
    """One running sandbox; `watch` sees it through to the end."""

    def __init__(
        self, launch: Launch, limits: SandboxLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._launch = launch
        self._limits = limits
        self._clock = clock
        self._started = clock()
        self._control = launch.control
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=launch.folder,
                env=launch.environment,
                pass_fds=launch.fds,
                start_new_session=True,
            )
        except OSError:
            self._control.close()
            raise
        self._control.started()
        assert self._process.stdout is not None and self._process.stderr is not None  # noqa: PT018
        self._report: _Stream | None = None
        self._stdout = _Stream(self._process.stdout.fileno(), limits.output_bytes)
        self._stderr = _Stream(self._process.stderr.fileno(), limits.output_bytes)
        self._watchdog = Watchdog(limits, launch.mounts)
        self._top: int | None = None
        self._finding: Finding | None = None
        self._trouble = ""

    def watch(self, stop: threading.Event | None) -> SandboxOutcome:
        """Drain the pipes until the process ends, is too slow, too big or too loud; then end it."""
        try:
            try:
                reason = self._wait(stop)
            finally:
                decided = time.perf_counter()
                self._launch.kill(self._process.pid, self._top)
                _, status, used = os.wait4(self._process.pid, 0)
                self._process.returncode = os.waitstatus_to_exitcode(status)
                kill_s = time.perf_counter() - decided
            for stream in self._streams():
                stream.drain()
            usage = SandboxUsage(
                wall_s=self._clock() - self._started,
                cpu_s=used.ru_utime + used.ru_stime,
                peak_rss_mb=self._watchdog.peak / 2**20 or None,
                result_bytes=self._report.size if self._report else 0,
                output_bytes=self._stdout.size + self._stderr.size,
                kill_s=kill_s,
            )
        finally:
            self._control.close()
            if self._top is not None:
                os.close(self._top)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        return self._outcome(reason, usage)

    def _outcome(self, reason: Reason, usage: SandboxUsage) -> SandboxOutcome:
        report = self._verdict(reason)
        return SandboxOutcome(
            reason="launch_failed" if self._report is None and reason == "exited" else reason,
            usage=usage,
            claim=report.claim,
            fault=report.fault,
            exit_code=self._process.returncode,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
        )

    def _streams(self) -> list[_Stream]:
        return [stream for stream in (self._report, self._stdout, self._stderr) if stream]

    def _wait(self, stop: threading.Event | None) -> Reason:
        exit_fd = os.pidfd_open(self._process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(exit_fd, selectors.EVENT_READ)
                selector.register(self._control.fileno(), selectors.EVENT_READ, self._control)
                for stream in self._streams():
                    selector.register(stream.fd, selectors.EVENT_READ, stream)
                return self._loop(selector, stop)
        finally:
            os.close(exit_fd)

    def _loop(self, selector: selectors.BaseSelector, stop: threading.Event | None) -> Reason:
        while True:
            left = self._left()
            if left <= 0:
                return "launch_failed" if self._report is None else "timeout"
            if stop is not None and stop.is_set():
                return "killed"
            # Before the greeting the sandbox is still being made and has the host's own mounts.
            if self._report is not None:
                self._finding = self._watchdog.look(self._clock()) or self._flood()
            if self._finding is not None:
                return self._finding.reason
            ended = False
            due = self._watchdog.due(self._clock())
            for key, _ in selector.select(min(left, POLL_S, max(due, 0.001))):
                if key.data is None:
                    ended = True
                elif key.data is self._control:
                    if not self._greet(selector):
                        return "launch_failed"
                else:
                    key.data.drain()
                    if not key.data.open:
                        selector.unregister(key.fd)
            if ended:
                return "exited"

    def _left(self) -> float:
        """Seconds until it is stopped: before the greeting by us, after it by the run's limit."""
        limit = self._limits.seconds
        if self._report is None:
            limit = max(limit, LAUNCH_S)
        return limit - (self._clock() - self._started)

    def _greet(self, selector: selectors.BaseSelector) -> bool:
        """The guest speaks for the first time: open the door, hand it the task."""
        before = self._control.fileno()
        try:
            greeted, listener = self._control.greeted()
            if greeted:
                root = self._launch.root(self._process.pid)
                if root:
                    # The launcher may be gone when it comes to killing, and what led to it with it.
                    self._top = os.pidfd_open(root)
                    self._watchdog.root = root
                self._launch.admit(listener)
                self._control.give(self._launch.task, LAUNCH_S)
        except OSError as error:
            self._trouble = str(error)
            return False
        finally:
            selector.unregister(before)
        if greeted:
            self._report = _Stream(self._control.fileno(), self._limits.result_bytes + REPORT_SLACK)
            selector.register(self._report.fd, selectors.EVENT_READ, self._report)
        else:
            selector.register(self._control.fileno(), selectors.EVENT_READ, self._control)
        return True

    def _flood(self) -> Finding | None:
        if self._report is not None and self._report.size > self._report.cap:
            return Finding("output_limit", "")
        if max(self._stdout.size, self._stderr.size) > self._limits.flood_bytes:
            return Finding("output_limit", f"more than {self._limits.flood_bytes} bytes of output")
        return None

    def _verdict(self, reason: Reason) -> Report:
        if reason == "killed":
            what = "the run was stopped from outside"
            return Report(fault=Fault(code=FaultCode.run_interrupted, what=what))
        if self._report is None:
            what = f"the sandbox cannot be started: {self._failure()}"
            return Report(fault=not_launched(what, self._stderr.text()))
        if reason == "timeout":
            return timed_out(self._limits.seconds)
        if self._finding is not None:
            size = self._limits.result_bytes
            return overran(self._finding) if self._finding.what else too_much(size)
        data = self._report.data()
        if data:
            return read_report(data)
        code = self._process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = self._stderr.text().strip().splitlines()[-1:]
        return crashed(": ".join([f"the process ended without a report ({how})", *last]))

    def _failure(self) -> str:
        if self._trouble:
            return self._trouble
        code = self._process.returncode
        return f"no word of it in {LAUNCH_S:g} s" if code < 0 else f"exit code {code}"


_ADVICE = "Run 'docker run --help'"
"""docker's last words, after the reason."""


def not_launched(what: str, stderr: str = "") -> Fault:
    """The sandbox could not be started: nobody's fault but the host's."""
    told = [line for line in stderr.strip().splitlines() if line and not line.startswith(_ADVICE)]
    last = told[-1:]
    return Fault(
        code=FaultCode.sandbox_launch_failed,
        what=": ".join([what, *last])[:300],
        remedy="`palio doctor` says what is missing; else free processes, descriptors or disk",
    )


def launch_failed(what: str) -> SandboxOutcome:
    """The outcome of a sandbox that was never started."""
    return SandboxOutcome(
        reason="launch_failed", fault=not_launched(what), usage=SandboxUsage(wall_s=0.0)
    )
