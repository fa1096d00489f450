"""The same enclosure by an OCI runtime: runc, or runsc where it is installed; no daemon, no image.

A bundle is written for each run: a root file system of a few files with the host's /usr mounted
read-only, and a config.json with user, mounts, limits and system call rules.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from palio.broker.server import BrokerServer
from palio.sandbox.bwrap import limited, system_folders, task_bytes
from palio.sandbox.child import LAUNCH_S, Launch
from palio.sandbox.control import Control, listening_at
from palio.sandbox.ending import wait_gone
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
from palio.sandbox.identity import BLOCK, dropped, fresh_user
from palio.sandbox.programs import program, system_python
from palio.sandbox.room import Begin, Door, Room
from palio.sandbox.seccomp import oci_profile
from palio.sandbox.spec import STRANGERS, Capabilities, SandboxLimits, SandboxSpec

Runtime = Literal["runc", "runsc"]
DOOR = "/door"
LEAVE_S = 2.0
"""How long a runtime gets to tidy up after its container before it is killed."""


class Bundle(NamedTuple):
    """One run's files on the host.

    Attributes:
        folder: holds everything; nobody but the container's users and root can list it.
        user: first id of the container's block, None without root: its root is then this user.
    """

    folder: Path
    user: int | None

    @property
    def root(self) -> Path:
        """The container's root file system."""
        return self.folder / "rootfs"

    @property
    def door(self) -> Path:
        """The folder that is mounted at /door."""
        return self.folder / "door"

    @property
    def peers(self) -> range:
        """User ids that the guest may have as the host sees it."""
        return (
            range(self.user, self.user + BLOCK)
            if self.user
            else range(os.getuid(), os.getuid() + 1)
        )


class OciDriver(Room):
    """Agents under an OCI runtime.

    Args:
        server: the broker that agents talk to; None: one of its own, stopped by `close`.
        runtime: runc shares the host's kernel, runsc (gVisor) has one of its own.
        clock: seconds, for the wall clock limit.

    Raises:
        MissingDependencyError: a program that it needs is not installed.
    """

    def __init__(
        self,
        server: BrokerServer | None = None,
        runtime: Runtime = "runc",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(server, clock)
        self._runtime = runtime
        self._program = program(runtime)
        self._setpriv = program("setpriv")
        self._prlimit = program("prlimit")
        self._python = system_python().path

    @property
    def capabilities(self) -> Capabilities:
        """Encloses all that there is to enclose."""
        return Capabilities(isolation=self._runtime, **dict.fromkeys(STRANGERS, True))

    def launch(self, begin: Begin, stack: contextlib.ExitStack) -> Launch:
        """See `Room.launch`."""
        spec, session, source = begin
        door = stack.enter_context(self.door(session))
        bundle = stack.enter_context(bundle_of(source))
        (bundle.folder / "config.json").write_text(
            json.dumps(self._config(bundle, spec.limits, session is not None))
        )
        return self._launch(bundle, spec, door, session is not None)

    def _launch(self, bundle: Bundle, spec: SandboxSpec, door: Door, with_door: bool) -> Launch:
        name = f"palio-{uuid.uuid4().hex[:16]}"
        state = str(bundle.folder / "state")
        base = [self._program, "--root", state, *self._flags()]
        pid_file = bundle.folder / "pid"
        admit = door.admit
        if self._runtime == "runsc" and with_door:
            admit = partial(_served_at, door, listening_at(bundle.door / "door", 1024))
        return Launch(
            argv=[
                *dropped(self._setpriv, None),
                *base,
                *("run", "--bundle", str(bundle.folder), "--pid-file", str(pid_file), name),
            ],
            control=Control.at(bundle.door / "control", bundle.peers),
            task=task_bytes(spec),
            admit=admit,
            kill=partial(_end, [*base, "delete", "--force", name]),
            environment={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "XDG_RUNTIME_DIR": state},
            folder=str(bundle.folder),
            root=lambda _: _number(pid_file),
            mounts=(TMP, SHM) if self._runtime == "runc" else (),
        )

    def _flags(self) -> list[str]:
        if self._runtime == "runc":
            return ["--rootless", "false" if os.geteuid() == 0 else "true"]
        door = ["--network=none", "--host-uds=open", "--oci-seccomp"]
        return [*door, "--overlay2=none", "--ignore-cgroups"]

    def _config(self, bundle: Bundle, limits: SandboxLimits, with_door: bool) -> dict[str, Any]:
        how = {"runc": "pass", "runsc": f"{DOOR}/door"}[self._runtime] if with_door else ""
        return config_of(
            [
                *(self._setpriv, "--pdeathsig", "KILL", "--"),
                *limited(self._prlimit, limits),
                *(self._python, *FLAGS, f"{HOME}/runner.py", f"{DOOR}/control", how),
                str(limits.seconds + 2 * LAUNCH_S),
            ],
            bundle,
            limits,
            oci_profile(gvisor=self._runtime == "runsc"),
        )


def config_of(
    argv: list[str], bundle: Bundle, limits: SandboxLimits, seccomp: dict[str, Any]
) -> dict[str, Any]:
    """The config.json of a run (OCI runtime specification 1.0.2)."""
    environment = {**ENVIRONMENT, "SANDBOX_PROXY_URL": DOOR_URL}
    inside = USER if bundle.user is not None else 0
    first, size = (bundle.user, BLOCK) if bundle.user is not None else (os.getuid(), 1)
    group = bundle.user if bundle.user is not None else os.getgid()
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    linux: dict[str, Any] = {
        "namespaces": [
            {"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "user")
        ],
        "uidMappings": [{"containerID": 0, "hostID": first, "size": size}],
        "gidMappings": [{"containerID": 0, "hostID": group, "size": size}],
        "seccomp": seccomp,
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug"],
        "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"],
    }
    if bundle.user is not None:
        # A backstop of the kernel's behind the watchdog, which sees a sandbox first and says why.
        roof = 2 * limits.memory_bytes
        linux["resources"] = {"memory": {"limit": roof}, "pids": {"limit": limits.pids + 8}}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": inside, "gid": inside},
            "args": argv,
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": TMP,
            "capabilities": {kind: [] for kind in kinds},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": HOSTNAME,
        "mounts": _mounts(bundle, limits),
        "linux": linux,
    }


def _mounts(bundle: Bundle, limits: SandboxLimits) -> list[dict[str, Any]]:
    safe = ["nosuid", "nodev"]

    def tmpfs(where: str, size: int, *more: str) -> dict[str, Any]:
        options = [*safe, "mode=1777", f"size={size}", *more]
        return {"destination": where, "type": "tmpfs", "source": "tmpfs", "options": options}

    def bind(source: str, where: str) -> dict[str, Any]:
        options = ["rbind", "ro", *safe]
        return {"destination": where, "type": "bind", "source": source, "options": options}

    inodes = f"nr_inodes={limits.inodes}"
    device = {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {**device, "options": ["nosuid", "mode=755", "size=65536", "nr_inodes=64"]},
        tmpfs(SHM, limits.shm_bytes, inodes),
        tmpfs(TMP, limits.tmp_bytes, inodes),
        *(bind(path, path) for path in system_folders()),
        bind(str(bundle.door), DOOR),
    ]


@contextlib.contextmanager
def bundle_of(source: bytes) -> Iterator[Bundle]:
    """A folder with the root file system of one run, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="palio-box-"))
    try:
        folder.chmod(0o711)  # the container's root must get through, nobody may look round
        bundle = Bundle(folder, fresh_user())
        for path in (
            "proc",
            "dev",
            "tmp",
            "etc",
            "agent",
            DOOR[1:],
            *(p[1:] for p in system_folders()),
        ):
            (bundle.root / path).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            top = Path("/", name)
            if top.is_symlink():
                (bundle.root / name).symlink_to(os.readlink(top))  # noqa: PTH115
        for where, data in {**guest_files(), AGENT: source}.items():
            file = bundle.root / where[1:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o444)
        for made in (bundle.root, *bundle.root.rglob("*")):
            if made.is_dir() and not made.is_symlink():
                made.chmod(0o755)
        (bundle.root / "tmp").chmod(0o1777)  # runc gives the mount the folder's mode
        bundle.door.mkdir()
        bundle.door.chmod(0o711)
        yield bundle
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _served_at(door: Door, listener: socket.socket, _: socket.socket | None) -> None:
    door.admit(listener)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _quietly(argv: list[str]) -> None:
    subprocess.run(  # noqa: S603 - the command is ours
        argv, env={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin"}, capture_output=True, timeout=10
    )


def _end(delete: list[str], launcher: int, init: int | None) -> None:
    """Kill the container's process 1; its runtime then tidies up, or is made to."""
    if init is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(init, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(launcher)
        try:
            left_alone = init is not None and select.select([fd], [], [], LEAVE_S)[0]
        finally:
            os.close(fd)
        if not left_alone:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                _quietly(delete)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(launcher, signal.SIGKILL)
    if init is not None:
        wait_gone([init])
