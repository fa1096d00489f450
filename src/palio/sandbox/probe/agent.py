"""Tries from inside what a sandbox must not allow, and says what came of it; run by the doctor."""

# A guest's file: only what starts fast.
# ruff: noqa: PTH108, PTH123, PTH208, S108, SIM105

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def agent_main(problem: dict[str, str]) -> list[dict[str, Any]]:
    """One step: name of the probe -> whether the attempt was held back, or what was seen."""
    kind = problem["probe"]
    if kind == "memory":
        _fill(int(problem["megabytes"]))
    return [
        {
            "files": not _readable(problem["file"]) and not _writable(problem["file"] + ".written"),
            "network": not _connects(int(problem["port"])),
            "processes": not _sees(problem["mark"]),
            "kernel": _refused_calls(),
            "disk": _full_after(int(problem["disk"])),
            "pids": _forks(int(problem["pids"])),
            "seen": [time.time(), os.urandom(8).hex(), os.uname().nodename],
        }
    ]


def _readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(file.read())
    except OSError:
        return False


def _writable(path: str) -> bool:
    try:
        with open(path, "wb") as file:
            file.write(b"x")
        return True
    except OSError:
        return False


def _connects(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False


def _sees(mark: str) -> bool:
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if mark.encode() in file.read():
                    return True
        except OSError:
            continue
    return False


def _refused_calls() -> bool:
    """Whether new namespaces and mounts are refused."""
    try:
        import ctypes
    except ImportError:
        return False  # what cannot be tried is not believed
    libc = ctypes.CDLL(None, use_errno=True)
    refused: bool = (
        libc.unshare(0x10000000) == -1 and libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1
    )
    return refused


def _full_after(limit: int) -> bool:
    """Whether /tmp takes less than the limit and a bit."""
    wrote = 0
    names: list[str] = []
    held_back = False
    try:
        while wrote < limit + (8 << 20):
            names.append(f"/tmp/palio-probe-{os.getpid()}-{len(names)}")
            with open(names[-1], "wb", buffering=0) as file:
                wrote += file.write(bytes(1 << 20))
    except OSError:
        held_back = wrote <= limit
    for name in names:
        try:
            os.unlink(name)
        except OSError:
            pass
    return held_back


def _forks(limit: int) -> bool:
    """Whether fewer than `limit` and a few processes can be made."""
    made: list[int] = []
    held_back = False
    try:
        while len(made) < limit + 16:
            pid = os.fork()
            if not pid:
                time.sleep(30)
                os._exit(0)
            made.append(pid)
    except OSError:
        held_back = True
    for pid in made:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return held_back


def _fill(megabytes: int) -> None:
    """Take memory in several processes, each of which is below the limit."""
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 10) * (megabytes << 10))
            time.sleep(20)
            os._exit(len(held) & 1)
    time.sleep(20)
