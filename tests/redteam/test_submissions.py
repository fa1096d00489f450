"""An agent file that is no file, or no Python, is the agent's fault before anything is started."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from palio.records import FaultCode
from palio.sandbox.spec import SandboxSpec
from tests.sandbox.conftest import driver_or_skip
from tests.sandbox.enclosures import FOUND

SOURCE = Path(__file__).parents[2] / "src"


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../../../../../tmp/climbed", "here")
        archive.writestr("__main__.py", "def agent_main(p): return []")


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("../../../../../../tmp/climbed")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"here"))


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def encoded(path: Path) -> None:
    path.write_bytes("# coding: utf-16\n\x00def agent_main(p): return []".encode("utf-16"))


def deep(path: Path) -> None:
    path.write_text("x = " + "(" * 100_000 + ")" * 100_000)


def endless(path: Path) -> None:
    path.write_text("def agent_main(p): return [] # " + "x" * 2_000_000)


FORMS: dict[str, Callable[[Path], None]] = {
    "zip": zipped,
    "tar": tarred,
    "pipe": os.mkfifo,
    "socket": bound,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "nothing": lambda _: None,
    "two megabytes": endless,
    "nested too deeply": deep,
    "UTF-16 with NUL": encoded,
    "no bytes": Path.touch,
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_agent_is_refused(name: str, form: str, tmp_path: Path) -> None:
    driver = driver_or_skip(name)
    path = tmp_path / "agent.py"
    FORMS[form](path)
    outcome = driver.run(SandboxSpec(agent=str(path), problem={}), None)
    assert outcome.fault is not None
    assert outcome.fault.code == FaultCode.agent_bad_source, outcome.fault
    assert not Path("/tmp/climbed").exists()


@pytest.mark.parametrize("name", FOUND)
def test_a_file_that_is_swapped_while_runs_start_is_read_whole(name: str, tmp_path: Path) -> None:
    """A run gets one of the files that stood there, never half of one."""
    driver = driver_or_skip(name)
    path = tmp_path / "agent.py"
    texts = [f"def agent_main(p): return [{{'a': {n}}}]\n# {'x' * 200_000}" for n in range(2)]
    over = threading.Event()
    path.write_text(texts[0])

    def swap() -> None:
        number = 0
        while not over.wait(0.001):
            number += 1
            (tmp_path / "next").write_text(texts[number % 2])
            (tmp_path / "next").replace(path)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(4):
            outcome = driver.run(SandboxSpec(agent=str(path), problem={}), None)
            assert outcome.claim in ([{"a": 0}], [{"a": 1}])
    finally:
        over.set()
        swapping.join()


def test_nothing_unpacks_an_archive() -> None:
    """No code of palio's takes members out of an archive, so there is nowhere to climb from."""
    words = ("extractall", "unpack_archive", "tarfile", ".extract(", "ZipFile.open")
    found = [
        (str(path.relative_to(SOURCE)), word)
        for path in SOURCE.rglob("*.py")
        for word in words
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []
