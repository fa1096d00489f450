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
from palio.sandbox.spec import Driver
from tests.broker.conftest import PROBLEM, Replies, completion, tiny_world

Run = Callable[..., Trajectory]
Write = Callable[[str], AgentSpec]

IMPORTS = """
from src.agent.agent_interface import create_dialogue_step, execute_tool_call
from src.agent.proxy_client import ProxyClient
"""


@pytest.fixture(scope="session")
def subprocess_driver() -> Iterator[SubprocessDriver]:
    with SubprocessDriver() as driver:
        yield driver


@pytest.fixture(params=["subprocess", "inline"])
def driver(request: pytest.FixtureRequest, subprocess_driver: SubprocessDriver) -> Driver:
    """Both drivers, one after the other."""
    return subprocess_driver if request.param == "subprocess" else InlineDriver()


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
