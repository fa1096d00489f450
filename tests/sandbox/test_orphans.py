"""An agent never outlives the host that started it, however the host dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.sandbox.conftest import driver_or_skip
from tests.sandbox.enclosures import SEVERAL

HOST = textwrap.dedent(
    """
    import sys
    from palio.agents.registry import find_agent
    from palio.broker.limits import Limits
    from palio.rollout import run_problem
    from palio.sandbox.choice import open_driver, opened
    from palio.world.synthesis.config import compact_config
    from palio.world.synthesis.synthesise import synthesise
    from palio.world.world import COMPACT, World

    made = synthesise(compact_config(1, products=100, problems=3))
    world = World.build(made.catalogue, COMPACT)
    with opened(open_driver(sys.argv[1])) as driver:
        print("ready", flush=True)
        run_problem(
            find_agent("spin"), made.problems[0], world, driver=driver, limits=Limits(seconds=60)
        )
    """
)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
@pytest.mark.parametrize("name", SEVERAL)
def test_a_spinning_agent_dies_with_its_killed_host(name: str, tmp_path: Path) -> None:
    driver_or_skip(name)
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, name], stdout=subprocess.PIPE, cwd=tmp_path, text=True
    )
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    children = wait_for_children(host.pid)
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    host.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=5)
    for child in alive:
        child.kill()
    assert not alive


def is_guest(process: psutil.Process) -> bool:
    try:
        return "runner.py" in " ".join(process.cmdline())
    except psutil.Error:  # a launcher's helper that has just ended
        return False


def wait_for_children(pid: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        children = [
            child for child in psutil.Process(pid).children(recursive=True) if is_guest(child)
        ]
        if children:
            return children
        time.sleep(0.05)
    raise AssertionError("the host started no agent")
