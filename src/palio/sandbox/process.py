"""A fresh process per problem that encloses nothing: for agents that are trusted as the host is.

Drained while it runs and killed with its whole tree at the end, as every sandbox is; but the agent
may read what its user may read, reach what the machine reaches, and leave daemons with other names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import psutil

from palio.broker.server import BrokerServer
from palio.sandbox.child import Launch
from palio.sandbox.control import Control
from palio.sandbox.ending import kill_all
from palio.sandbox.guestfiles import ENVIRONMENT, FLAGS, GUEST
from palio.sandbox.room import Begin, Room
from palio.sandbox.spec import Capabilities, SandboxSpec

__all__ = ["GUEST", "SubprocessDriver"]


class SubprocessDriver(Room):
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
        super().__init__(server, clock)
        self._python = python

    @property
    def capabilities(self) -> Capabilities:
        """A process of its own and nothing else; never ranked."""
        return Capabilities(isolation="none", process=True)

    def launch(self, begin: Begin, stack: contextlib.ExitStack) -> Launch:
        """See `Room.launch`."""
        spec, session, _ = begin
        url = ""
        if session is not None:
            url = self.server.register(session)
            stack.callback(self.server.unregister, url)
        folder = tempfile.mkdtemp(prefix="palio-run-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return self._launch(spec, url, folder)

    def _launch(self, spec: SandboxSpec, url: str, folder: str) -> Launch:
        if shutil.which(self._python) is None:  # setpriv would report it as the agent's exit
            raise FileNotFoundError(f"no interpreter at {self._python}")
        task = {
            "agent": str(Path(spec.agent).resolve()),
            "problem": spec.problem,
            "seed": spec.seed,
            "result_bytes": spec.limits.result_bytes,
        }
        control = Control.inherited()
        assert control.guest is not None
        fd = control.guest.fileno()
        mark = f"PALIO_RUN={Path(folder).name}"
        own = {"HOME": folder, "TMPDIR": folder, "PALIO_RUN": Path(folder).name}
        return Launch(
            argv=[*_leash(), self._python, *FLAGS, str(GUEST / "runner.py"), str(fd), ""],
            control=control,
            task=json.dumps(task).encode("ascii"),
            admit=_no_listener,
            kill=partial(_kill_tree, mark.encode()),
            environment={**ENVIRONMENT, **own, "SANDBOX_PROXY_URL": url},
            folder=folder,
            fds=(fd,),
            root=lambda pid: pid,
        )


def _no_listener(listener: object) -> None:
    if listener is not None:
        raise OSError("a child process handed over a socket that nobody asked for")


@cache
def _leash() -> tuple[str, ...]:
    """Has the kernel kill the child when this process dies, by SIGKILL even.

    Without it an agent that never ends outlives a killed race and keeps a core busy for good.
    util-linux has `setpriv` on every Debian and Ubuntu; it costs one more exec, under 1 ms.
    """
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


def _kill_tree(mark: bytes, leader: int, _: int | None) -> None:
    """SIGKILL to the process group, to every descendant that left it, and to daemons.

    The leader is not reaped yet, so its id cannot have been given to another process.
    """
    try:
        descendants = [process.pid for process in psutil.Process(leader).children(recursive=True)]
    except psutil.Error:
        descendants = []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    kill_all([*descendants, *_marked(mark)])


def _marked(mark: bytes) -> Iterator[int]:
    """Processes whose environment holds `mark`, the name of the run's own folder.

    A daemon (forked twice, in a session of its own) has no parent left that would lead to it, but
    it still has the environment that it was started with. Looking costs 5 us a process.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    yield int(entry.name)
