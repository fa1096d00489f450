"""A fresh process per problem, drained while it runs and killed with its whole tree at the end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from palio.broker.server import BrokerServer
from palio.broker.session import Session
from palio.records import Fault, FaultCode
from palio.sandbox.report import Report, crashed, read_report, timed_out, too_much
from palio.sandbox.spec import Capabilities, Reason, SandboxOutcome, SandboxSpec, SandboxUsage

GUEST = Path(__file__).parent / "guest"
"""Folder that is put on the agent's import path; it holds the runner and the `src` package."""
POLL_S = 0.25
"""How soon a `stop` is noticed."""
REPORT_SLACK = 64 * 1024
"""Bytes of a report beside the claim."""


class SubprocessDriver:
    """Agents as child processes of this one: no isolation at all, and branded so.

    Args:
        server: the broker that children talk to; None: one of its own, stopped by `close`.
        python: interpreter of the children; only its standard library is on their path.
        clock: seconds, for the wall clock limit.
    """

    def __init__(
        self,
        server: BrokerServer | None = None,
        python: str = sys.executable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = server is None
        self._server = server or BrokerServer()
        self._python = python
        self._clock = clock

    @property
    def capabilities(self) -> Capabilities:
        """A process of its own and nothing else; ranked: bundled agents need no more.

        The brand "none" stands on every trajectory, so an arena can refuse them.
        """
        return Capabilities(isolation="none", process=True, ranked=True)

    def close(self) -> None:
        """Stop the broker if it is this driver's own."""
        if self._own:
            self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self, spec: SandboxSpec, session: Session, stop: threading.Event | None = None
    ) -> SandboxOutcome:
        """See `Driver.run`."""
        url = ""
        folder = ""
        try:
            url = self._server.register(session)
            folder = tempfile.mkdtemp(prefix="palio-run-")
            child = _Child(self._command(spec, url, folder), spec, self._clock)
        except OSError as error:
            return _not_run(f"the agent's process cannot be started: {error}")
        else:
            outcome = child.watch(stop)
            return outcome if self._server.alive else _not_run("the broker died during the run")
        finally:
            self._server.unregister(url)
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _command(self, spec: SandboxSpec, url: str, folder: str) -> _Command:
        # The environment is all ours, so -E is not needed, and a fixed hash seed makes the order
        # of sets in agents repeatable. Without site (-S) start-up takes 8 ms instead of 20.
        flags = ["-S", "-s", "-P", "-B"]
        environment = {
            "SANDBOX_PROXY_URL": url,
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONUTF8": "1",
        }
        task = {
            "agent": str(Path(spec.agent).resolve()),
            "guest": str(GUEST),
            "problem": spec.problem,
            "seed": spec.seed,
            "result_bytes": spec.limits.result_bytes,
        }
        if shutil.which(self._python) is None:  # setpriv would report it as the agent's exit
            raise FileNotFoundError(f"no interpreter at {self._python}")
        argv = [*_leash(), self._python, *flags, str(GUEST / "runner.py")]
        return _Command(argv, environment, folder, task)


@cache
def _leash() -> tuple[str, ...]:
    """Has the kernel kill the child when this process dies, by SIGKILL even.

    Without it an agent that never ends outlives a killed race and keeps a core busy for good.
    util-linux has `setpriv` on every Debian and Ubuntu; it costs one more exec, under 1 ms.
    """
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


def _not_run(what: str) -> SandboxOutcome:
    fault = Fault(
        code=FaultCode.sandbox_launch_failed,
        what=what[:300],
        remedy="free processes, file descriptors or disk, then resume the run",
    )
    return SandboxOutcome(reason="launch_failed", fault=fault, usage=SandboxUsage(wall_s=0.0))


class _Command:
    def __init__(
        self, argv: list[str], environment: dict[str, str], folder: str, task: dict[str, object]
    ) -> None:
        self.argv = argv
        self.environment = environment
        self.folder = folder
        self.task = json.dumps(task).encode("ascii")


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


class _Child:
    """One running child; `watch` sees it through to the end."""

    def __init__(self, command: _Command, spec: SandboxSpec, clock: Callable[[], float]) -> None:
        self._limits = spec.limits
        self._clock = clock
        self._started = clock()
        self._mark = f"SANDBOX_PROXY_URL={command.environment['SANDBOX_PROXY_URL']}".encode()
        report_read, report_write = os.pipe()
        try:
            with tempfile.TemporaryFile() as task:
                task.write(command.task)
                task.seek(0)
                self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                    [*command.argv, str(report_write)],
                    stdin=task,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=command.folder,
                    env=command.environment,
                    pass_fds=(report_write,),
                    start_new_session=True,
                )
        except OSError:
            os.close(report_read)
            raise
        finally:
            os.close(report_write)
        assert self._process.stdout is not None and self._process.stderr is not None  # noqa: PT018
        self._report_fd = report_read
        self._report = _Stream(report_read, spec.limits.result_bytes + REPORT_SLACK)
        self._stdout = _Stream(self._process.stdout.fileno(), spec.limits.output_bytes)
        self._stderr = _Stream(self._process.stderr.fileno(), spec.limits.output_bytes)

    def watch(self, stop: threading.Event | None) -> SandboxOutcome:
        """Drain the pipes until the process ends, is too slow or too loud; then clean up."""
        try:
            reason = self._wait(stop)
            self._kill_tree()
            _, status, used = os.wait4(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            for stream in self._streams():
                stream.drain()
            usage = SandboxUsage(
                wall_s=self._clock() - self._started,
                cpu_s=used.ru_utime + used.ru_stime,
                peak_rss_mb=used.ru_maxrss / 1024,
                result_bytes=self._report.size,
                output_bytes=self._stdout.size + self._stderr.size,
            )
        finally:
            os.close(self._report_fd)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
        report = self._verdict(reason)
        return SandboxOutcome(
            reason=reason,
            usage=usage,
            claim=report.claim,
            fault=report.fault,
            exit_code=self._process.returncode,
            stdout=self._stdout.text(),
            stderr=self._stderr.text(),
        )

    def _streams(self) -> tuple[_Stream, _Stream, _Stream]:
        return self._report, self._stdout, self._stderr

    def _wait(self, stop: threading.Event | None) -> Reason:
        exit_fd = os.pidfd_open(self._process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(exit_fd, selectors.EVENT_READ)
                for stream in self._streams():
                    selector.register(stream.fd, selectors.EVENT_READ, stream)
                return self._loop(selector, stop)
        finally:
            os.close(exit_fd)

    def _loop(self, selector: selectors.BaseSelector, stop: threading.Event | None) -> Reason:
        while True:
            left = self._limits.seconds - (self._clock() - self._started)
            if left <= 0:
                return "timeout"
            if stop is not None and stop.is_set():
                return "killed"
            ended = False
            for key, _ in selector.select(min(left, POLL_S)):
                stream = key.data
                if stream is None:
                    ended = True
                    continue
                stream.drain()
                if not stream.open:
                    selector.unregister(key.fd)
            if self._report.size > self._report.cap:
                return "output_limit"
            if ended:
                return "exited"

    def _kill_tree(self) -> None:
        """SIGKILL to the process group, to every descendant that left it, and to daemons.

        The leader is not reaped yet, so its id cannot have been given to another process.
        """
        try:
            descendants = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            descendants = []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for pid in _marked(self._mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _verdict(self, reason: Reason) -> Report:
        if reason == "timeout":
            return timed_out(self._limits.seconds)
        if reason == "output_limit":
            return too_much(self._limits.result_bytes)
        if reason == "killed":
            what = "the run was stopped from outside"
            return Report(fault=Fault(code=FaultCode.run_interrupted, what=what))
        data = self._report.data()
        if data:
            return read_report(data)
        code = self._process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = self._stderr.text().strip().splitlines()[-1:]
        return crashed(": ".join([f"the process ended without a report ({how})", *last]))


def _marked(mark: bytes) -> Iterator[int]:
    """Processes whose environment holds `mark`, the run's own secret URL.

    A daemon (forked twice, in a session of its own) has no parent left that would lead to it, but
    it still has the environment that it was started with. Looking costs 5 us a process.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    yield int(entry.name)
