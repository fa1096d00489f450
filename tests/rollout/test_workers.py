"""Ctrl-C at a terminal reaches every worker; only the host may speak."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from palio.rollout.workers import hear_interrupts, starting_workers

def work(folder):
    Path(folder, "working").touch()
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=hear_interrupts) as pool:
        with starting_workers():
            future = pool.submit(work, sys.argv[1])
        Path(sys.argv[1], "started").touch()
        try:
            future.result()
        except KeyboardInterrupt:
            print("interrupted")
else:
    time.sleep(0.5)  # a worker that imports for long
"""


@pytest.mark.parametrize("moment", ["started", "working"])
def test_only_the_host_speaks_when_interrupted(tmp_path: Path, moment: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    host = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while not (tmp_path / moment).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(host.pid, signal.SIGINT)
    out, err = host.communicate(timeout=20)
    assert out == "interrupted\n"
    assert err == ""
