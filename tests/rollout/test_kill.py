"""kill -9 in the middle of a suite: the next run loses nothing and makes nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from palio.records import Trajectory, from_json
from palio.rollout import read_trajectories
from palio.rollout.journal import FILE
from tests.conftest import ROOT
from tests.rollout.agents import jobs, written

PROGRAM = """
import sys
from pathlib import Path
from palio.rollout import run_suite
from palio.sandbox.process import SubprocessDriver
from tests.rollout.agents import jobs, written
SLOW = Path(sys.argv[1]).read_text()
if __name__ == "__main__":
    with SubprocessDriver() as driver:
        work = jobs(written(Path(sys.argv[2]), SLOW, "slow"), problems=24)
        report = run_suite(work, Path(sys.argv[3]), driver=driver, concurrency=3)
        print("ran", report.ran, "skipped", report.skipped)
"""
SLOW = """
import time
from src.agent.agent_interface import execute_tool_call

def agent_main(problem):
    execute_tool_call("find_product", {"q": problem["query"]})
    time.sleep(0.15)
    execute_tool_call("terminate", {})
    return []
"""


def start(folder: Path) -> subprocess.Popen[str]:
    (folder / "slow.txt").write_text(SLOW)
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py")]
    arguments = [str(folder / name) for name in ("slow.txt", "agents", "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command + arguments, env=environment, stdout=subprocess.PIPE, text=True)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def test_killed_twice_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "out" / FILE
    kept: list[bytes] = []
    for wanted in (5, 12):
        with start(tmp_path) as process:
            deadline = time.monotonic() + 60
            while len(lines(path)) < wanted and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        now = [line for line in lines(path) if line.endswith(b"\n")]
        assert len(now) >= wanted
        assert now[: len(kept)] == kept, "a resumed run must not touch what is there"
        kept = now
    with start(tmp_path) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.split() == ["ran", str(24 - len(kept)), "skipped", str(len(kept))]
    assert lines(path)[: len(kept)] == kept
    work = jobs(written(tmp_path / "agents", SLOW, "slow"), problems=24)
    runs = list(read_trajectories(path))
    assert Counter(t.trajectory_id for t in runs) == Counter(job.key(0) for job in work)
    assert all(from_json(line, Trajectory).ending == "terminated" for line in kept)


def test_killed_agents_do_not_outlive_the_suite(tmp_path: Path) -> None:
    """Ctrl-C ends the whole command within seconds, children included."""
    import psutil

    with start(tmp_path) as process:
        deadline = time.monotonic() + 60
        while len(lines(tmp_path / "out" / FILE)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode not in (0, None)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
