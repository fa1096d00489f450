"""What drivers really enclose on this machine: each capability is tried from inside."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from palio.records import PalioError, Record
from palio.sandbox.choice import ENCLOSED, UNENCLOSED, UNSAFE, close_driver, trial
from palio.sandbox.programs import install, program, system_python
from palio.sandbox.spec import (
    STRANGERS,
    Capability,
    Driver,
    SandboxLimits,
    SandboxOutcome,
    SandboxSpec,
)

PROBE = Path(__file__).parent / "probe" / "agent.py"
MIB = 1 << 20
LIMITS = SandboxLimits(seconds=20.0, tmp_bytes=8 * MIB, pids=24)
TIGHT = SandboxLimits(seconds=20.0, memory_bytes=160 * MIB)
_HINTS = (
    ("namespace", "allow user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
     "kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0"),
    ("uid map", "allow user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ("cgroup", "runc as root needs a writable cgroup file system; bwrap needs none"),
    ("daemon", "start the docker daemon, or use another driver: none of them needs a daemon"),
)  # fmt: skip


class Finding(Record, frozen=True):
    """One capability of one driver.

    Attributes:
        declared: what the driver says.
        held: what the attempt from inside showed.
    """

    capability: Capability
    declared: bool
    held: bool


class Examination(Record, frozen=True):
    """One driver.

    Attributes:
        works: it started a sandbox here.
        trouble: why it does not, "" when it does.
        remedy: what to install or change.
        ranked: it encloses everything, so its runs may count.
        seconds: of the smallest run, start to end.
    """

    driver: str
    works: bool
    trouble: str = ""
    remedy: str = ""
    isolation: str = ""
    ranked: bool = False
    seconds: float | None = None
    findings: tuple[Finding, ...] = ()


class Diagnosis(Record, frozen=True):
    """The machine: its drivers, and what sandboxes are made with ("" where it is missing)."""

    machine: str
    user: str
    programs: dict[str, str]
    drivers: tuple[Examination, ...]

    @property
    def ranked(self) -> tuple[str, ...]:
        """Names of the drivers that are fit for strangers' code, the preferred one first."""
        return tuple(each.driver for each in self.drivers if each.ranked)


def diagnose(progress: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Examine every driver; takes about a second for each that works.

    Args:
        progress: called with each driver's name before it is examined.
    """
    examined = []
    for name in (*ENCLOSED, UNSAFE):
        progress(name)
        examined.append(examine(name))
    return Diagnosis(
        machine=f"{platform.system()} {platform.release()} {platform.machine()}",
        user="root" if os.geteuid() == 0 else "an ordinary user",
        programs={name: _version(name) for name in ("bwrap", "setpriv", "prlimit", "runc", "runsc")}
        | {"python3": _python()},
        drivers=tuple(examined),
    )


def examine(name: str) -> Examination:
    """Start the driver called `name` and try each capability from inside."""
    try:
        driver = {**ENCLOSED, **UNENCLOSED}[name](None)
    except PalioError as error:
        return Examination(driver=name, works=False, trouble=error.what, remedy=error.remedy)
    try:
        trouble = trial(driver)
        if trouble:
            hints = [hint for word, hint in _HINTS if word in trouble.lower()]
            remedy = hints[0] if hints else "the message is the program's own"
            return Examination(driver=name, works=False, trouble=trouble, remedy=remedy)
        started = time.perf_counter()
        trial(driver)
        seconds = time.perf_counter() - started
        findings = tuple(_probed(driver))
    finally:
        close_driver(driver)
    return Examination(
        driver=name,
        works=True,
        isolation=driver.capabilities.isolation,
        ranked=driver.capabilities.ranked and all(each.held for each in findings),
        seconds=round(seconds, 4),
        findings=findings,
    )


def _probed(driver: Driver) -> Iterator[Finding]:
    """One finding a capability; what could not be tried counts as not held."""
    first, again = _attempt(driver), _attempt(driver)
    memory = _outcome(driver, {"probe": "memory", "megabytes": "60"}, TIGHT)
    seen = first.claim[0] if isinstance(first.claim, list) and first.claim else {}
    other = again.claim[0] if isinstance(again.claim, list) and again.claim else {}
    held = {
        **{name: seen.get(name) is True for name in STRANGERS},
        "process": bool(seen),
        "memory": memory.reason == "oom",
        "fixed": bool(seen) and seen.get("seen") == other.get("seen"),
        "ranked": driver.capabilities.ranked,
    }
    for name in STRANGERS:
        yield Finding(name, getattr(driver.capabilities, name), held[name])


def _attempt(driver: Driver) -> SandboxOutcome:
    with (
        tempfile.TemporaryDirectory(prefix="palio-doctor-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        _marked_process() as mark,
    ):
        Path(folder).chmod(0o777)
        secret = Path(folder) / "secret"
        secret.write_text("of the host")
        secret.chmod(0o666)
        problem = {
            "probe": "all",
            "file": str(secret),
            "port": str(server.getsockname()[1]),
            "mark": mark,
            "disk": str(LIMITS.tmp_bytes),
            "pids": str(LIMITS.pids),
        }
        return _outcome(driver, problem)


def _outcome(
    driver: Driver, problem: dict[str, str], limits: SandboxLimits = LIMITS
) -> SandboxOutcome:
    return driver.run(SandboxSpec(agent=str(PROBE), problem=problem, limits=limits), None)


@contextmanager
def _marked_process() -> Iterator[str]:
    """A process of the host with a command line that can be looked for."""
    mark = secrets.token_hex(8)
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-S", "-c", code, mark], stdin=subprocess.PIPE
    ) as running:
        yield mark
        assert running.stdin is not None
        running.stdin.close()


def _version(name: str) -> str:
    try:
        path = program(name)
        said = subprocess.run(  # noqa: S603 - a system program
            [path, "--version"], capture_output=True, text=True, timeout=10
        )
    except (PalioError, OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip().splitlines()[0] if said.stdout.strip() else path


def _python() -> str:
    try:
        found = system_python()
    except PalioError:
        return ""
    return f"{found.path} {found.version[0]}.{found.version[1]}"


def remedies(diagnosis: Diagnosis) -> list[str]:
    """What to do, one sentence each, the most useful first."""
    told = [
        f"{each.driver}: {each.trouble}; {each.remedy}"
        for each in diagnosis.drivers
        if not each.works
    ]
    if not diagnosis.programs["bwrap"]:
        told.insert(0, f"the default driver: {install('bwrap')}")
    return told
