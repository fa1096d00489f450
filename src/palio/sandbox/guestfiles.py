"""What every sandbox holds: the guest's files, the agent's, and a few that programs look for."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from palio.sandbox.packages import archive
from palio.sandbox.report import SOURCE_BYTES

GUEST = Path(__file__).parent / "guest"
"""Folder that is put on the agent's import path; it holds the runner and the `src` package."""
HOME = "/palio"
AGENT = "/agent/agent.py"
HOSTNAME = "sandbox"
DOOR_URL = "http://127.0.0.1:8000"
"""Where the agent finds its door; the port is the guest's (`guest/door.py`)."""
TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - of the sandbox
"""All that the agent can write to."""
USER = 1000
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": TMP,
    "TMPDIR": TMP,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}
"""All of the agent's environment but SANDBOX_PROXY_URL; the same in every run."""
FLAGS = ("-S", "-s", "-B")
"""Of the interpreter. The environment is all ours, so -E is not needed, and a fixed hash seed makes
the order of sets in agents repeatable. Without site (-S) start-up takes 8 ms instead of 20."""
_ETC = {
    "/etc/passwd": f"agent:x:{USER}:{USER}:agent:/tmp:/bin/sh\n",
    "/etc/group": f"agent:x:{USER}:\n",
    "/etc/hosts": f"127.0.0.1 localhost {HOSTNAME} proxy\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@cache
def guest_files() -> dict[str, bytes]:
    """Path inside the sandbox -> content, of all that is the same in every run."""
    files = {
        f"{HOME}/{path.relative_to(GUEST)}": path.read_bytes()
        for path in sorted(GUEST.rglob("*.py"))
    }
    if archive():
        files[f"{HOME}/packages.zip"] = archive()
    return files | {path: text.encode() for path, text in _ETC.items()}


def read_regular(path: str | Path, limit: int, *, dir_fd: int | None = None) -> bytes:
    """A regular file's bytes, at most `limit`; nothing else is ever opened for reading.

    Args:
        path: with `dir_fd`, one name in a folder that an agent could write to: a symbolic link
            there is refused.
        limit: a longer file is refused.
        dir_fd: the folder.

    Raises:
        OSError: it is no regular file, it is too long, or it cannot be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    if dir_fd is not None:
        if os.path.basename(path) != str(path):  # noqa: PTH119 - not a path, a name
            raise OSError(f"{path} is no name of a file")
        flags |= os.O_NOFOLLOW
    fd = os.open(path, flags, dir_fd=dir_fd)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        held = os.fstat(fd)
        if not stat.S_ISREG(held.st_mode):
            raise OSError(f"{path} is no regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path} has more than {limit} bytes")
    return data


def agent_source(path: str) -> bytes:
    """The agent's file.

    Raises:
        OSError: see `read_regular`.
    """
    return read_regular(path, SOURCE_BYTES)
