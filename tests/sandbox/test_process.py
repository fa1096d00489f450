"""A child is drained while it runs, its tree dies with it, and nothing it prints is trusted."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from palio.records import Ending, FaultCode
from palio.rollout.problem import StoppedError
from palio.sandbox.guestfiles import ENVIRONMENT
from palio.sandbox.process import SubprocessDriver
from palio.sandbox.spec import SandboxLimits, SandboxOutcome, SandboxSpec
from tests.broker.conftest import PROBLEM, Clock
from tests.sandbox.conftest import Run, Write


@pytest.fixture
def outcome(write: Write, subprocess_driver: SubprocessDriver, open_session: Any) -> Any:
    """Runs source and gives the driver's own outcome."""

    def make(source: str, **limits: Any) -> SandboxOutcome:
        spec = SandboxSpec(
            agent=write(source).path,
            problem=PROBLEM.public(),
            limits=SandboxLimits(**{"seconds": 20.0, **limits}),
        )
        return subprocess_driver.run(spec, open_session())

    return make


@pytest.fixture
def open_session(world: Any) -> Any:
    from palio.broker.session import Session
    from palio.records import AgentRef

    return lambda: Session(AgentRef(name="a"), PROBLEM, world, clock=Clock())


@pytest.fixture
def world() -> Any:
    from tests.broker.conftest import tiny_world

    return tiny_world()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_large_result_comes_through(outcome: Any) -> None:
    result = outcome("def agent_main(p):\n    return [{'a': 'x' * 5_000_000}]")
    assert (result.reason, result.fault) == ("exited", None)
    assert len(result.claim[0]["a"]) == 5_000_000
    assert result.usage.result_bytes > 5_000_000


def test_floods_of_output_are_dropped_not_stored(outcome: Any) -> None:
    result = outcome(
        """
        import os, sys
        def agent_main(p):
            for _ in range(200):
                os.write(1, b"\\xff\\x00" * 100_000)
                sys.stderr.write("e" * 100_000)
            return []
        """,
        output_bytes=1000,
    )
    assert (result.reason, result.fault) == ("exited", None)
    assert len(result.stdout) == len(result.stderr) == 1000
    assert "\x00" not in result.stdout
    assert result.usage.output_bytes == 60_000_000


def test_never_ending_is_killed_in_time(run: Run, subprocess_driver: SubprocessDriver) -> None:
    trajectory = run(
        """
        import signal
        def agent_main(p):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                pass
        """,
        subprocess_driver,
        seconds=0.7,
    )
    assert trajectory.ending is Ending.timed_out
    assert trajectory.fault is not None
    assert trajectory.fault.what == "the agent was stopped after 0.7 s"


@pytest.mark.parametrize("how", ["in its group", "in a session of its own"])
def test_children_die_with_the_agent(outcome: Any, tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    result = outcome(
        f"""
        import subprocess, sys, time
        def agent_main(p):
            own = {how != "in its group"}
            loop = "import time; time.sleep(60)"
            child = subprocess.Popen([sys.executable, "-c", loop], start_new_session=own)
            open({str(pids)!r}, "w").write(str(child.pid))
            time.sleep(60)
        """,
        seconds=4.0,
    )
    assert result.reason == "timeout"
    pid = int(pids.read_text())
    deadline = time.monotonic() + 5
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(pid)


def test_a_daemon_dies_with_the_agent(outcome: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = outcome(
        f"""
        import os, time
        def agent_main(p):
            if os.fork():
                os.wait()
                while not os.path.exists({str(pids)!r}):
                    time.sleep(0.01)
                return []
            os.setsid()
            if os.fork():
                os._exit(0)
            for fd in range(1, 64):
                try:
                    os.close(fd)
                except OSError:
                    pass
            with open("pid", "w") as file:
                file.write(str(os.getpid()))
            os.rename("pid", {str(pids)!r})
            time.sleep(60)
        """
    )
    assert result.reason == "exited"
    deadline = time.monotonic() + 5
    pid = int(pids.read_text())
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(pid)


def test_children_left_behind_do_not_hold_up_the_end(outcome: Any) -> None:
    result = outcome(
        """
        import subprocess, threading, time
        def agent_main(p):
            subprocess.Popen(["/bin/sleep", "600"])
            threading.Thread(target=time.sleep, args=(600,)).start()
            return [{"a": 1}]
        """
    )
    assert (result.reason, result.claim) == ("exited", [{"a": 1}])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os\ndef agent_main(p):\n    os._exit(3)", "exit code 3"),
        ("import os\ndef agent_main(p):\n    os.kill(os.getpid(), 9)", "signal 9"),
        ("import os\ndef agent_main(p):\n    os.write(2, b'last')\n    os.abort()", "last"),
    ],
)  # fmt: skip
def test_dying_without_a_report_is_a_crash(outcome: Any, source: str, words: str) -> None:
    result = outcome(source)
    assert (result.fault.code, result.claim) == (FaultCode.agent_crashed, None)
    assert words in result.fault.what


FORGED = """
import os, sys
def agent_main(p):
    os.write(int(sys.argv[1]), {data})
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("b'not json'", FaultCode.agent_bad_return),
        ("b'[' * 60000", FaultCode.agent_bad_return),
        ("b'[1]'", FaultCode.agent_bad_return),
        ('b\'{"status":"ok"}\'', FaultCode.agent_bad_return),
        ('b\'{"status":"launch_failed"}\'', FaultCode.agent_bad_return),
        ('b\'{"status":["ok"]}\'', FaultCode.agent_bad_return),
        ('b\'{"status":"crashed","what":"\\\\ud800"}\'', FaultCode.agent_crashed),
    ],
)
def test_a_forged_report_blames_only_the_agent(outcome: Any, data: str, code: FaultCode) -> None:
    assert outcome(FORGED.format(data=data)).fault.code == code


def test_a_flood_through_the_report_is_cut_off(outcome: Any) -> None:
    source = """
    import os, sys
    def agent_main(p):
        while True:
            os.write(int(sys.argv[1]), b"x" * 65536)
    """
    result = outcome(source, result_bytes=1_000_000)
    assert result.reason == "output_limit"
    assert result.fault.code == FaultCode.agent_output_limit
    assert result.usage.result_bytes < 8_000_000


def test_the_child_sees_no_environment_of_ours(
    outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALIO_SECRET", "s3cret")
    source = """
    import os, sys
    def agent_main(p):
        open_fds = [fd for fd in os.listdir("/proc/self/fd")]
        return [{"env": sorted(os.environ), "path": sys.path, "fds": len(open_fds),
                 "stdin": os.read(0, 10).decode(), "cwd": os.listdir(".")}]
    """
    (seen,) = outcome(source).claim
    assert seen["env"] == sorted([*ENVIRONMENT, "PALIO_RUN", "SANDBOX_PROXY_URL"])
    assert not any("site-packages" in entry or entry == "" for entry in seen["path"])
    assert seen["fds"] <= 5
    assert (seen["stdin"], seen["cwd"]) == ("", [])


def test_random_is_seeded(run: Run, subprocess_driver: SubprocessDriver) -> None:
    source = "import random\ndef agent_main(p):\n    raise ValueError(random.random())"
    whats = [
        (run(source, subprocess_driver, seed=seed).fault or object()).what  # type: ignore[attr-defined]
        for seed in (1, 1, 2)
    ]
    assert whats[0] == whats[1] != whats[2]


def test_stop_kills_and_leaves_no_record(run: Run, subprocess_driver: SubprocessDriver) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    source = "def agent_main(p):\n    while True: pass"
    with pytest.raises(StoppedError):
        run(source, subprocess_driver, seconds=1e6, stop=stop)


def test_no_interpreter_is_the_validator_s_fault(run: Run) -> None:
    with SubprocessDriver(python="/no/such/python") as driver:
        trajectory = run("def agent_main(p): return []", driver)
    assert trajectory.ending is Ending.infra
    assert trajectory.fault is not None
    assert trajectory.fault.code == FaultCode.sandbox_launch_failed


def test_a_broker_that_died_is_not_charged_to_the_agent(run: Run) -> None:
    with SubprocessDriver() as driver:
        threading.Timer(0.5, driver.close).start()
        trajectory = run(
            """
            import time
            def agent_main(p):
                time.sleep(1.5)
                return []
            """,
            driver,
        )
    assert trajectory.ending is Ending.infra
    assert trajectory.fault is not None
    assert trajectory.fault.what == "the broker died during the run"


def test_a_run_leaves_nothing_behind(
    outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fds() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    outcome("def agent_main(p): return []")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before = fds()
    for _ in range(3):
        outcome("def agent_main(p):\n    open('left', 'w').write('x')\n    return []")
    assert fds() <= before
    assert not list((tmp_path / "tmp").iterdir())
