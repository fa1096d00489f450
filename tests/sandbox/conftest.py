"""Agent files are written into the test, the world is the tiny one of the broker's tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palio.agents.spec import AgentSpec, agent_from_file
from palio.broker.limits import Limits
from palio.records import Trajectory
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.sandbox.process import SubprocessDriver
from palio.sandbox.spec import Driver, SandboxOutcome
from tests.broker.conftest import PROBLEM, Replies, completion, tiny_world
from tests.sandbox.enclosures import FOUND, IMPORTS, SEVERAL, outcome_of, working

Run = Callable[..., Trajectory]
Write = Callable[[str], AgentSpec]
Outcome = Callable[..., SandboxOutcome]


@pytest.fixture(scope="session")
def subprocess_driver() -> Iterator[SubprocessDriver]:
    with SubprocessDriver() as driver:
        yield driver


def driver_or_skip(name: str) -> Driver:
    """The driver called `name`; skips the test where it does not work."""
    driver, why = working(name)
    if driver is None:
        pytest.skip(f"driver {name}: {why}")
    return driver


@pytest.fixture(params=FOUND)
def enclosed_driver(request: pytest.FixtureRequest) -> Driver:
    """Every driver for strangers' code that works here, one after the other."""
    return driver_or_skip(request.param)


@pytest.fixture(params=SEVERAL)
def process_driver(request: pytest.FixtureRequest) -> Driver:
    """Every driver with processes of its own, the unsafe one too."""
    return driver_or_skip(request.param)


@pytest.fixture(params=[*SEVERAL, "inline"])
def driver(request: pytest.FixtureRequest) -> Driver:
    """All drivers."""
    return InlineDriver() if request.param == "inline" else driver_or_skip(request.param)


@pytest.fixture
def enclosed(enclosed_driver: Driver, tmp_path: Path) -> Outcome:
    """``enclosed(source, **limits)`` under every enclosing driver; see `outcome_of`."""

    def make(source: str, **more: Any) -> SandboxOutcome:
        return outcome_of(enclosed_driver, source, tmp_path, **more)

    return make


@pytest.fixture
def processed(process_driver: Driver, tmp_path: Path) -> Outcome:
    """The same under every driver with processes of its own."""

    def make(source: str, **more: Any) -> SandboxOutcome:
        return outcome_of(process_driver, source, tmp_path, **more)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes an agent file and gives its spec."""

    def make(source: str) -> AgentSpec:
        path = tmp_path / "agent.py"
        path.write_text(IMPORTS + textwrap.dedent(source), encoding="utf-8")
        return agent_from_file(path, name="written")

    return make


@pytest.fixture
def run(write: Write) -> Run:
    """Runs an agent's source on the tiny problem."""

    def make(source: str, driver: Driver, seconds: float = 20.0, **more: Any) -> Trajectory:
        more.setdefault("upstream", Replies(completion("hello")))
        limits = Limits(seconds=seconds)
        return run_problem(
            write(source), PROBLEM, tiny_world(), driver=driver, limits=limits, **more
        )

    return make
