"""The default on Linux: an agent alone in namespaces of its own, with one door and nothing else.

Everything that it sees is made for it: a read-only part of /usr, files handed over by descriptor
(no path of the host stands in its mount table), a /tmp that is capped and gone afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from palio.broker.server import BrokerServer
from palio.sandbox.child import LAUNCH_S, Launch
from palio.sandbox.control import Control
from palio.sandbox.ending import kill_namespace
from palio.sandbox.guestfiles import (
    AGENT,
    DOOR_URL,
    ENVIRONMENT,
    FLAGS,
    HOME,
    HOSTNAME,
    SHM,
    TMP,
    USER,
    guest_files,
)
from palio.sandbox.identity import dropped, fresh_user
from palio.sandbox.programs import program, system_python
from palio.sandbox.room import Begin, Room
from palio.sandbox.seccomp import filter_bytes
from palio.sandbox.spec import STRANGERS, Capabilities, SandboxLimits, SandboxSpec
from palio.sandbox.watchdog import children


class BwrapDriver(Room):
    """Agents under bubblewrap, unprivileged: no daemon, no image, no root.

    Args:
        server: the broker that agents talk to; None: one of its own, stopped by `close`.
        clock: seconds, for the wall clock limit.

    Raises:
        MissingDependencyError: a program that it needs is not installed.
    """

    def __init__(
        self, server: BrokerServer | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(server, clock)
        self._bwrap = program("bwrap")
        self._setpriv = program("setpriv")
        self._prlimit = program("prlimit")
        self._python = system_python().path
        filter_bytes()

    @property
    def capabilities(self) -> Capabilities:
        """Encloses all that there is to enclose."""
        return Capabilities(isolation="bwrap", **dict.fromkeys(STRANGERS, True))

    def launch(self, begin: Begin, stack: contextlib.ExitStack) -> Launch:
        """See `Room.launch`."""
        control = Control.inherited()
        stack.callback(control.close)
        door = stack.enter_context(self.door(begin.session))
        files = stack.enter_context(_handed({**guest_files(), AGENT: begin.source}))
        options = stack.enter_context(
            _memory("options", _joined(_options(begin.spec.limits, files)))
        )
        seccomp = stack.enter_context(_memory("seccomp", filter_bytes()))
        assert control.guest is not None
        return Launch(
            argv=[
                *dropped(self._setpriv, fresh_user()),
                *(self._bwrap, "--args", str(options), "--seccomp", str(seccomp)),
                *limited(self._prlimit, begin.spec.limits),
                *(self._python, *FLAGS, f"{HOME}/runner.py"),
                *(str(control.guest.fileno()), "pass" if begin.session else ""),
                str(begin.spec.limits.seconds + 2 * LAUNCH_S),
            ],
            control=control,
            task=task_bytes(begin.spec),
            admit=door.admit,
            kill=kill_namespace,
            fds=(*files.values(), options, seccomp, control.guest.fileno()),
            root=_init,
            mounts=(TMP, SHM),
        )


def task_bytes(spec: SandboxSpec) -> bytes:
    """What the guest is told."""
    task = {
        "agent": AGENT,
        "problem": spec.problem,
        "seed": spec.seed,
        "result_bytes": spec.limits.result_bytes,
    }
    return json.dumps(task).encode("ascii")


def limited(prlimit: str, limits: SandboxLimits) -> list[str]:
    """Limits of each process; set inside, where they count for this sandbox alone.

    No limit of address space: threads reserve far more than they use, and the watchdog counts use.
    """
    cpu = int(limits.seconds) + 2
    return [
        prlimit,
        f"--nproc={limits.pids}",
        f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}",
        f"--cpu={cpu}",
        "--core=0",
        "--",
    ]


def _options(limits: SandboxLimits, files: dict[str, int]) -> list[str]:
    """What bwrap reads from a descriptor, so that nothing of it stands in a command line.

    Process 1 is the guest's own (`door.become_init`): bwrap's would be the agent's user with its
    memory open to the agent, and without the agent's limits.
    """
    options = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--new-session", "--die-with-parent", "--as-pid-1", "--hostname", HOSTNAME),
        *("--uid", str(USER), "--gid", str(USER)),
        *system_binds(),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "0700", "--size", str(limits.shm_bytes), "--tmpfs", SHM),
        *("--remount-ro", "/dev"),
        *("--perms", "0700", "--size", str(limits.tmp_bytes), "--tmpfs", TMP),
    ]
    for path, fd in files.items():
        options += ["--perms", "0444", "--file", str(fd), path]
    options += ["--remount-ro", "/", "--chdir", TMP]
    for name, value in {**ENVIRONMENT, "SANDBOX_PROXY_URL": DOOR_URL}.items():
        options += ["--setenv", name, value]
    return options


@cache
def system_binds() -> tuple[str, ...]:
    """Programs and libraries, read-only, and no more of the host: no /etc, /home, /usr/local."""
    binds: list[str] = []
    for path in system_folders():
        binds += ["--ro-bind", path, path]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        top = Path("/", name)
        if top.is_symlink() and Path("/", os.readlink(top)).exists():  # noqa: PTH115
            binds += ["--symlink", os.readlink(top), f"/{name}"]  # noqa: PTH115
    return tuple(binds)


@cache
def system_folders() -> tuple[str, ...]:
    """Folders of the host that a sandboxed Python needs to start."""
    names = ["/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32"]
    prefix = system_python().prefix
    if prefix != "/usr":
        names += [f"{prefix}/bin", f"{prefix}/lib"]
    names += [f"/{name}" for name in ("bin", "lib", "lib64") if not Path("/", name).is_symlink()]
    return tuple(name for name in names if Path(name).is_dir())


def _init(launcher: int) -> int:
    """The sandbox's own process 1, as the host numbers it; 0 while there is none."""
    found = children(launcher)
    return found[0] if found else 0


def _joined(options: Sequence[str]) -> bytes:
    return b"".join(option.encode() + b"\0" for option in options)


@contextlib.contextmanager
def _memory(name: str, data: bytes) -> Iterator[int]:
    """A descriptor from which `data` can be read once."""
    fd = os.memfd_create(name)
    try:
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _handed(files: dict[str, bytes]) -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        yield {path: stack.enter_context(_memory("file", data)) for path, data in files.items()}
