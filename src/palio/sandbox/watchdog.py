"""What a process tree holds, seen from outside: memory of all processes, files in its tmpfs.

A limit of one process is none of a tree, and a size cap of a tmpfs does not cap its inodes. Where
the host has no cgroup to give away, looking is the only way, and it costs 20 us a process.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from palio.sandbox.spec import Reason, SandboxLimits

_PAGE = os.sysconf("SC_PAGE_SIZE")
CALM_S = 0.02
"""Between two looks at a tree that uses little. In 0.1 s an idle core fills 200 MB; the kernel's
own cap, where there is one, would then end it first, and would not say why."""
ALERT_S = 0.01
"""Between two looks at a tree that uses over a quarter of its memory; a core fills 20 MB in it."""


class Finding(NamedTuple):
    """Why a sandbox is stopped."""

    reason: Reason
    what: str


def tree(pid: int) -> list[int]:
    """The process and all its descendants; a daemon of a pid namespace is its init's child."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 - called in a loop
                found += children(parent, thread)
    return found


def children(pid: int, thread: int | str = "") -> list[int]:
    """Children of one thread, by default the main one."""
    try:
        with open(f"/proc/{pid}/task/{thread or pid}/children", "rb") as file:  # noqa: PTH123
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def resident(pid: int) -> int:
    """Bytes that a process has in memory, shared pages whole; cheap."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - a hundred a second
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def proportional(pid: int) -> int:
    """Bytes that a process has in memory, shared pages divided by who shares them; dear."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123 - see above
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Watchdog:
    """Looks at one sandbox now and then.

    Args:
        limits: memory and inodes.
        mounts: folders inside the sandbox that it can write to.

    Attributes:
        root: the id of the tree's topmost process, 0 while it is not known.
        peak: most memory seen, bytes.
    """

    def __init__(self, limits: SandboxLimits, mounts: tuple[str, ...] = ()) -> None:
        self._limits = limits
        self._mounts = mounts
        self.root = 0
        self._next = 0.0
        self.peak = 0

    def look(self, now: float) -> Finding | None:
        """Look if it is time; a finding means: stop it."""
        if now < self._next:
            return None
        if not self.root:
            self._next = now + CALM_S
            return None
        pids = tree(self.root)
        used = self._memory(pids)
        self._next = now + (ALERT_S if used > self._limits.memory_bytes // 4 else CALM_S)
        if used > self._limits.memory_bytes:
            return Finding("oom", f"more than {self._limits.memory_bytes >> 20} MiB of memory")
        if self._mounts and self._inodes(self.root) > self._limits.inodes:
            return Finding("output_limit", f"more than {self._limits.inodes} files")
        return None

    def due(self, now: float) -> float:
        """Seconds until the next look."""
        return max(0.0, self._next - now)

    def _memory(self, pids: list[int]) -> int:
        used = sum(resident(pid) for pid in pids)
        if used > self._limits.memory_bytes:
            # Many forks of one interpreter share most of what is resident in each.
            used = sum(proportional(pid) for pid in pids)
        self.peak = max(self.peak, used)
        return used

    def _inodes(self, pid: int) -> int:
        """Files on the fullest writable mount, as the process `pid` in the sandbox sees it."""
        most = 0
        for mount in self._mounts:
            try:
                held = os.statvfs(f"/proc/{pid}/root{mount}")
            except OSError:
                continue
            most = max(most, held.f_files - held.f_ffree)
        return most
