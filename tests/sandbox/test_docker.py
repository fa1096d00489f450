"""The docker driver over a stand-in for the docker command: its options, its door, its ending."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palio.sandbox.docker import DockerDriver
from tests.sandbox.conftest import driver_or_skip
from tests.sandbox.enclosures import outcome_of, processes_of, tiny_session
from tests.sandbox.test_conformance import FAMILY, GOOD
from tests.waiting import wait_for

FAKE = Path(__file__).parent / "fake_docker.py"


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    driver_or_skip("bwrap")
    program = tmp_path / "docker"
    program.write_text(f"#!{sys.executable}\n" + FAKE.read_text())
    program.chmod(0o755)
    return program


@pytest.fixture
def driver(docker: Path) -> Iterator[DockerDriver]:
    if os.geteuid() != 0:
        pytest.skip("the stand-in maps one user only")
    with DockerDriver(docker=str(docker)) as made:
        made._user = 0  # the stand-in's only user, as the host sees it
        yield made


def calls(docker: Path) -> list[list[str]]:
    text = (docker.parent / "docker-state" / "calls").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_good_agent_and_the_options_that_enclose_it(
    driver: DockerDriver, docker: Path, tmp_path: Path
) -> None:
    session = tiny_session()
    outcome = outcome_of(driver, GOOD, tmp_path, session=session)
    assert outcome.fault is None
    assert outcome.claim[0]["found"] == 2
    assert len(session.close(outcome.ending, outcome.fault, outcome.claim).dispatches) == 1
    run, remove = calls(docker)
    assert remove[:2] == ["rm", "--force"]
    assert {"--rm", "--read-only", "--network=none", "--cap-drop=ALL", "--pids-limit=72"} <= {*run}
    assert {f"--memory={512 << 20}", f"--memory-swap={512 << 20}", "--hostname=sandbox"} <= {*run}
    assert run[run.index("--security-opt") + 1] == "no-new-privileges"
    mounts = [run[at + 1] for at, word in enumerate(run) if word == "--volume"]
    assert all(mount.endswith(":ro") for mount in mounts)
    assert [mount.split(":")[1] for mount in mounts] == [
        "/palio", "/agent", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/door",
    ]  # fmt: skip
    tmpfs = [run[at + 1] for at, word in enumerate(run) if word == "--tmpfs"]
    assert all("nr_inodes=10000" in mount and "size=" in mount for mount in tmpfs)


def test_stopping_removes_the_container(driver: DockerDriver, docker: Path, tmp_path: Path) -> None:
    mark = f"6{time.monotonic_ns() % 10**8}"
    stop = threading.Event()
    session = tiny_session()
    found: list[object] = []

    def work() -> None:
        source = FAMILY.format(mark=mark, then="time.sleep(0.01)")
        found.append(outcome_of(driver, source, tmp_path, stop=stop, session=session).reason)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: session.status()["left"]["calls"] < 400)
    stop.set()
    thread.join(20)
    assert found == ["killed"]
    wait_for(lambda: not processes_of(mark), 2)
    assert calls(docker)[-1][:2] == ["rm", "--force"]


def test_containers_of_dead_hosts_are_swept(docker: Path) -> None:
    state = docker.parent / "docker-state"
    state.mkdir()
    with DockerDriver(docker=str(docker)) as driver:
        assert driver.sweep() == 0
        alive, dead = os.getpid(), 2**22 - 3
        for name, host in (("a", alive), ("b", dead)):
            (state / f"{name}.json").write_text(json.dumps({"pid": 2**22 - 5, "host": str(host)}))
        assert driver.sweep() == 1
    assert calls(docker)[-1] == ["rm", "--force", "b"]


def test_an_engine_that_does_not_run_is_said(tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 125\n")
    program.chmod(0o755)
    assert shutil.which("sh")
    with DockerDriver(docker=str(program)) as driver:
        outcome = outcome_of(driver, "def agent_main(p): return []", tmp_path)
    assert outcome.reason == "launch_failed"
    assert outcome.fault is not None
    assert "exit code 125: Cannot connect to the Docker daemon" in outcome.fault.what
