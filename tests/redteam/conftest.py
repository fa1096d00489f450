"""One attack under one driver: the host prepared, the attacker run, a neighbour run beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from palio.broker.journal import BodyJournal
from palio.broker.limits import Limits
from palio.broker.session import Session
from palio.records import AgentRef
from palio.sandbox.guestfiles import read_regular
from palio.sandbox.spec import Driver, SandboxLimits
from tests.broker.conftest import PROBLEM, Replies, tiny_world
from tests.redteam.attacks import ASKS, SMALL, Attack
from tests.redteam.host import Host
from tests.redteam.oracles import Seen
from tests.sandbox.enclosures import outcome_of, processes_of, tiny_session, working

AGENTS = Path(__file__).parent / "agents"
TIMES = ("at_ms", "duration_ms", "duration_s", "timestamp")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host()
    monkeypatch.setenv("PALIO_RED_TEAM", made.canary)
    try:
        yield made
    finally:
        made.close()


def source_of(agent: str) -> str:
    return (AGENTS / f"{agent}.py").read_text(encoding="utf-8")


def strike(driver: Driver, attack: Attack, host: Host, folder: Path) -> Seen:
    """Run one attack and give what the host saw."""
    limits = {**SMALL, **attack.limits}
    told = {**PROBLEM.public(), **host.told, **attack.told}
    if driver.capabilities.isolation == "none":
        told["only"] = "self parent"
    with ThreadPoolExecutor(1) as pool, BodyJournal(folder) as journal:
        session = Session(
            AgentRef(name=attack.agent, model="m1"),
            PROBLEM,
            tiny_world(),
            Replies(*attack.model),
            Limits(seconds=limits["seconds"] + 60),
            journal=journal.run(),
        )
        looking = pool.submit(look_in, host) if attack.agent == "outputs" else None
        outcome = outcome_of(
            driver, source_of(attack.agent), folder, session=session, problem=told, **limits
        )
        looked = looking.result() if looking else None
        run = session.close(outcome.ending, outcome.fault, outcome.claim)
    return Seen(outcome, run, host, SandboxLimits(**limits), journal.path, looked)


def look_in(host: Host) -> dict[str, bytes | None]:
    """Read every name in a running sandbox's /tmp as a host does; None: refused.

    Then end the process that the attacker waits for.
    """
    deadline = time.monotonic() + 30
    while not (waiting := processes_of(host.mark)):
        assert time.monotonic() < deadline, "the attacker did not come that far"
        time.sleep(0.02)
    try:
        return collected(Path(f"/proc/{waiting[0].pid}/root/tmp"))
    finally:
        for process in waiting:
            process.kill()


def collected(folder: Path) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in os.listdir(fd):  # noqa: PTH208 - of a descriptor
            try:
                found[name] = read_regular(name, 1_000_000, dir_fd=fd)
            except OSError:
                found[name] = None
    finally:
        os.close(fd)
    return found


def neighbour(driver: Driver, folder: Path) -> Any:
    """The record and the claim of a well-behaved agent, times left out."""
    folder.mkdir(exist_ok=True)
    session = tiny_session(Replies(*ASKS))
    outcome = outcome_of(driver, source_of("good"), folder, session=session, seconds=120.0)
    assert outcome.fault is None, outcome
    run = session.close(outcome.ending, outcome.fault, outcome.claim)
    return timeless(msgspec.to_builtins([run, outcome.claim, outcome.reason]))


@cache
def alone(name: str, folder: Path) -> Any:
    """The neighbour's record without any attack."""
    driver, _ = working(name)
    assert driver is not None
    return neighbour(driver, folder)


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key not in TIMES}
    if isinstance(value, list | tuple):
        return [timeless(each) for each in value]
    return value


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """No sandbox of ours outlives the tests."""
    yield
    left = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
        and any(word.endswith("/runner.py") for word in process.cmdline())
    ]
    assert not left
