"""Drivers that work here, and one way to run a source under any of them; for the red team too."""

from __future__ import annotations

import textwrap
import threading
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from palio.broker.limits import Limits
from palio.broker.session import Session
from palio.records import AgentRef, MissingDependencyError
from palio.sandbox.choice import ENCLOSED, UNSAFE, open_driver
from palio.sandbox.spec import Driver, SandboxLimits, SandboxOutcome, SandboxSpec
from tests.broker.conftest import PROBLEM, Replies, completion, tiny_world

IMPORTS = """
from src.agent.agent_interface import create_dialogue_step, execute_tool_call
from src.agent.proxy_client import ProxyClient
"""
OPTIONAL = {"oci-runsc": "/usr/bin/runsc", "docker": "/var/run/docker.sock"}
"""Drivers that no test asks for where the machine has no such file."""
FOUND = tuple(name for name in ENCLOSED if Path(OPTIONAL.get(name, "/")).exists())
"""Names of the drivers for strangers' code to be tested here."""
SEVERAL = (*FOUND, UNSAFE)
"""Names of all drivers with processes of their own."""


@cache
def working(name: str) -> tuple[Driver | None, str]:
    """The driver, opened once, or why it does not work here."""
    try:
        return open_driver(name), ""
    except MissingDependencyError as error:
        return None, str(error)


def tiny_session(upstream: Any = None, **limits: Any) -> Session:
    """A run of the tiny problem; limits are the broker's."""
    return Session(
        AgentRef(name="written", model="m1"),
        PROBLEM,
        tiny_world(),
        upstream or Replies(completion("hello")),
        Limits(**limits) if limits else None,
    )


def outcome_of(
    driver: Driver,
    source: str,
    folder: Path,
    *,
    session: Session | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
    problem: dict[str, str] | None = None,
    **limits: Any,
) -> SandboxOutcome:
    """Run `source` (indented as it comes; the contract's imports are there already)."""
    path = folder / "agent.py"
    path.write_text(IMPORTS + textwrap.dedent(source), encoding="utf-8")
    spec = SandboxSpec(
        agent=str(path),
        problem=PROBLEM.public() if problem is None else problem,
        limits=SandboxLimits(**{"seconds": 20.0, **limits}),
        seed=seed,
    )
    return driver.run(spec, session, stop)


def processes_of(mark: str) -> list[psutil.Process]:
    """Processes of this machine, in whatever namespace, whose command line holds `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(mark in word for word in process.cmdline())
            if named and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
