"""Sandboxes from launch to last process, beside a bare interpreter and the same under runc."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from palio.broker.server import BrokerServer
from palio.records import PalioError
from palio.sandbox.choice import close_driver, open_driver
from palio.sandbox.guestfiles import FLAGS
from palio.sandbox.programs import system_python
from palio.sandbox.spec import Driver, SandboxLimits, SandboxSpec

NOTHING = "def agent_main(problem):\n    return []\n"
FAMILY = """
import os, time
def agent_main(problem):
    for _ in range(30):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
        os.wait()
    time.sleep(60)
"""


def run(quick: bool) -> list[dict[str, Any]]:
    """Start-up over a bare interpreter, 200 sandboxes, and the kill of a tree of daemons."""
    rounds, many = (5, 20) if quick else (40, 200)
    with BrokerServer() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nothing.py").write_text(NOTHING)
        (folder / "family.py").write_text(FAMILY)
        bwrap = open_driver("bwrap", server=server)
        try:
            other: Driver | None = open_driver("oci", server=server)
        except PalioError:
            other = None
        bare, ours, theirs = _interleaved(
            [_bare, _once(bwrap, folder), _once(other, folder) if other else _bare], rounds
        )
        together = _all(_once(bwrap, folder), many)
        alone = _all(_bare, many)
        kills = [_kill(bwrap, folder) for _ in range(3 if quick else 15)]
        close_driver(bwrap)
    target = "" if quick else "<= "
    return [
        {
            "name": "sandbox from launch to last process, over a bare interpreter's run, p50",
            "palio": 1000 * (ours - bare),
            "peer": 1000 * (theirs - bare) if other else None,
            "peer_name": "the same agent under runc" if other else "",
            "unit": "ms",
            "target": target and "<= 30",
        },
        {
            "name": f"{many} sandboxes, 4 at a time",
            "palio": together,
            "peer": alone,
            "peer_name": "bare interpreters",
            "unit": "s",
            "target": target and "<= 10",
        },
        {
            "name": "kill of 31 processes, 30 of them daemons, p50",
            "palio": 1000 * statistics.median(kills),
            "unit": "ms",
            "target": target and "<= 100",
        },
    ]


def _bare() -> None:
    argv = [system_python().path, *FLAGS, "-c", "pass"]
    subprocess.run(argv, env={}, capture_output=True, check=True)


def _once(driver: Driver, folder: Path) -> Callable[[], None]:
    spec = SandboxSpec(agent=str(folder / "nothing.py"), problem={})

    def work() -> None:
        outcome = driver.run(spec, None)
        assert outcome.claim == [], outcome.fault

    return work


def _interleaved(works: list[Callable[[], None]], rounds: int) -> list[float]:
    """Median seconds of each; taking turns, so that a busy moment hits all of them."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for kept, work in zip(times, works, strict=True):
            started = time.perf_counter()
            work()
            kept.append(time.perf_counter() - started)
    return [statistics.median(kept) for kept in times]


def _all(work: Callable[[], None], count: int) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(work) for _ in range(count)]:
            made.result()
    return time.perf_counter() - started


def _kill(driver: Driver, folder: Path) -> float:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    spec = SandboxSpec(str(folder / "family.py"), {}, SandboxLimits(seconds=20.0))
    used = driver.run(spec, None, stop).usage
    assert used.kill_s is not None
    return used.kill_s
