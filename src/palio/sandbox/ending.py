"""However a sandbox ends, when its ending returns there is no process of it left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable

from palio.sandbox.watchdog import children

GONE_S = 5.0
"""Longest wait for killed processes; a pid namespace of 60 processes goes in under 10 ms."""


def kill_namespace(launcher: int, init: int | None) -> None:
    """SIGKILL to process 1 of the launcher's pid namespace, which ends every process in it.

    The kernel does that before it reports process 1 as gone, so no daemon, however often it
    forked, is left. The launcher is not reaped here, so its id cannot be another process's.
    """
    with contextlib.ExitStack() as stack:
        held = [init] if init is not None else _opened(children(launcher), stack)
        for fd in held:
            _kill(fd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(launcher, signal.SIGKILL)
        wait_gone(held)


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to each of these processes; returns when they are gone."""
    with contextlib.ExitStack() as stack:
        held = _opened(pids, stack)
        for fd in held:
            _kill(fd)
        wait_gone(held)


def wait_gone(pidfds: Iterable[int], seconds: float = GONE_S) -> bool:
    """Wait until all these processes are gone; whether they are."""
    waiting = set(pidfds)
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
    return not waiting


def _opened(pids: Iterable[int], stack: contextlib.ExitStack) -> list[int]:
    """Descriptors of those processes that still are; they cannot come to mean others."""
    held = []
    for pid in pids:
        with contextlib.suppress(OSError):
            held.append(os.pidfd_open(pid))
            stack.callback(os.close, held[-1])
    return held


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
