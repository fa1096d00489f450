"""The same enclosure by the docker command line, where an engine is what a machine has."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from palio.broker.server import BrokerServer
from palio.sandbox.bwrap import task_bytes
from palio.sandbox.child import LAUNCH_S, Launch
from palio.sandbox.control import Control
from palio.sandbox.guestfiles import (
    DOOR_URL,
    ENVIRONMENT,
    FLAGS,
    HOME,
    HOSTNAME,
    SHM,
    TMP,
    USER,
)
from palio.sandbox.oci import DOOR, Bundle, bundle_of
from palio.sandbox.programs import program
from palio.sandbox.room import Begin, Room
from palio.sandbox.seccomp import oci_profile
from palio.sandbox.spec import STRANGERS, Capabilities, SandboxLimits

IMAGE = "python:3.12-slim"
"""Any image with a Python of 3.9 or newer; name it by digest to hold runs to the same bytes."""
KILL_S = 20.0
LABEL = "palio.host"


class DockerDriver(Room):
    """Agents as containers of a local docker engine, one a run, no network, no capabilities.

    Args:
        server: the broker that agents talk to; None: one of its own, stopped by `close`.
        image: what the container is made of; must be there or be pullable.
        docker: the command line program, "" for the one that is installed.
        clock: seconds, for the wall clock limit.

    Raises:
        MissingDependencyError: the docker command is not installed.
    """

    def __init__(
        self,
        server: BrokerServer | None = None,
        image: str = IMAGE,
        docker: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(server, clock)
        self._docker = docker or program("docker")
        self._image = image
        self._user = USER if os.geteuid() == 0 else os.getuid()

    @property
    def capabilities(self) -> Capabilities:
        """Encloses all that there is to enclose; memory and processes by the engine's cgroup."""
        return Capabilities(isolation="docker", **dict.fromkeys(STRANGERS, True))

    def launch(self, begin: Begin, stack: contextlib.ExitStack) -> Launch:
        """See `Room.launch`."""
        spec, session, source = begin
        door = stack.enter_context(self.door(session))
        bundle = stack.enter_context(bundle_of(source))
        profile = bundle.folder / "seccomp.json"
        profile.write_text(json.dumps(oci_profile()))
        name = f"palio-{uuid.uuid4().hex[:16]}"
        return Launch(
            argv=self._argv(name, bundle, spec.limits, session is not None),
            control=Control.at(bundle.door / "control", range(self._user, self._user + 1)),
            task=task_bytes(spec),
            admit=door.admit,
            kill=partial(self._end, name),
            environment={"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(bundle.folder)},
            folder=str(bundle.folder),
        )

    def _argv(self, name: str, bundle: Bundle, limits: SandboxLimits, with_door: bool) -> list[str]:
        safe = f"nosuid,nodev,mode=1777,nr_inodes={limits.inodes}"
        options = {
            "name": name,
            "label": f"{LABEL}={os.getpid()}",
            "network": "none",
            "hostname": HOSTNAME,
            "user": f"{self._user}:{self._user}",
            "workdir": TMP,
            "cap-drop": "ALL",
            "pids-limit": str(limits.pids + 8),
            "memory": str(limits.memory_bytes),
            "memory-swap": str(limits.memory_bytes),
            "entrypoint": "python3",
            "pull": "missing",
            "log-driver": "none",
        }
        argv = [self._docker, "run", "--rm", "--read-only"]
        argv += [f"--{option}={value}" for option, value in options.items()]
        for option in ("no-new-privileges", f"seccomp={bundle.folder / 'seccomp.json'}"):
            argv += ["--security-opt", option]
        argv += ["--tmpfs", f"{TMP}:size={limits.tmp_bytes},{safe}"]
        argv += ["--tmpfs", f"{SHM}:size={limits.shm_bytes},{safe}"]
        for limit in _ulimits(limits):
            argv += ["--ulimit", limit]
        for inside in (HOME, "/agent", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"):
            argv += ["--volume", f"{bundle.root / inside[1:]}:{inside}:ro"]
        argv += ["--volume", f"{bundle.door}:{DOOR}:ro"]
        for key, value in {**ENVIRONMENT, "SANDBOX_PROXY_URL": DOOR_URL}.items():
            argv += ["--env", f"{key}={value}"]
        argv += [self._image, *FLAGS, f"{HOME}/runner.py", f"{DOOR}/control"]
        return [*argv, "pass" if with_door else "", str(limits.seconds + 2 * LAUNCH_S)]

    def _end(self, name: str, launcher: int, _: int | None) -> None:
        """The engine kills the container; killing its client alone would leave it running."""
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self._call("rm", "--force", name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(launcher, signal.SIGKILL)

    def sweep(self) -> int:
        """Remove containers of hosts that died; how many there were."""
        form = f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
        listed = self._call("ps", "--all", "--filter", f"label={LABEL}", "--format", form)
        dead = [
            container
            for container, _, host in (line.partition(" ") for line in listed.splitlines())
            if host.isdigit() and not Path("/proc", host).exists()
        ]
        if dead:
            self._call("rm", "--force", *dead)
        return len(dead)

    def _call(self, *words: str) -> str:
        return subprocess.run(  # noqa: S603 - docker, with words of ours
            [self._docker, *words], capture_output=True, text=True, timeout=KILL_S
        ).stdout


def _ulimits(limits: SandboxLimits) -> list[str]:
    cpu = int(limits.seconds) + 2
    pairs = {
        "nofile": limits.open_files, "fsize": limits.file_bytes, "cpu": cpu, "core": 0,
    }  # fmt: skip
    return [f"{name}={value}:{value}" for name, value in pairs.items()]
