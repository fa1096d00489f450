"""Drivers are refused unless they enclose what is asked, and a refusal says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palio.cli.main import app
from palio.records import ConfigError, MissingDependencyError
from palio.sandbox import choice, doctor, programs
from palio.sandbox.bwrap import BwrapDriver
from palio.sandbox.choice import UNSAFE, close_driver, open_driver, opened
from palio.sandbox.guestfiles import read_regular
from palio.sandbox.inline import InlineDriver
from palio.sandbox.process import SubprocessDriver
from palio.sandbox.spec import STRANGERS
from tests.sandbox.conftest import driver_or_skip


def test_auto_is_bwrap_where_it_works() -> None:
    driver_or_skip("bwrap")
    with opened(open_driver()) as driver:
        assert isinstance(driver, BwrapDriver)


@pytest.mark.parametrize("name", [UNSAFE, "inline"])
def test_nothing_unenclosed_is_ranked_or_fit_for_strangers(name: str) -> None:
    driver = open_driver(name)
    close_driver(driver)
    assert isinstance(driver, SubprocessDriver | InlineDriver)
    assert not driver.capabilities.ranked
    with pytest.raises(ConfigError, match=r"does not enclose: .*network") as caught:
        open_driver(name, required=STRANGERS)
    assert "bwrap" in caught.value.remedy


def test_an_unknown_driver_is_named() -> None:
    with pytest.raises(ConfigError, match="firejail"):
        open_driver("firejail")


def test_without_programs_it_fails_closed_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "_FOLDERS", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependencyError, match="bwrap: the program bwrap is not") as caught:
        open_driver()
    assert "apt-get install bubblewrap" in caught.value.remedy
    assert UNSAFE in caught.value.remedy


def test_a_driver_that_does_not_work_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "trial", lambda driver: "no user namespaces")
    with pytest.raises(MissingDependencyError, match="does not work here: no user namespaces"):
        open_driver("bwrap" if driver_or_skip("bwrap") else "")
    with pytest.raises(MissingDependencyError, match="no driver encloses"):
        open_driver()


def test_the_doctor_tries_each_capability() -> None:
    driver_or_skip("bwrap")
    good, bad = doctor.examine("bwrap"), doctor.examine(UNSAFE)
    assert good.ranked
    assert [finding.capability for finding in good.findings] == list(STRANGERS)
    assert all(finding.held and finding.declared for finding in good.findings)
    held = {finding.capability for finding in bad.findings if finding.held}
    assert bad.works
    assert not bad.ranked
    assert not held & {"network", "files", "processes", "pids", "disk", "ranked"}


def test_the_doctor_s_exit_code_says_whether_strangers_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "ENCLOSED", {})
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [each["driver"] for each in found["drivers"]] == [UNSAFE]
    monkeypatch.setattr(doctor, "ENCLOSED", {"bwrap": BwrapDriver})
    monkeypatch.setattr(programs, "_FOLDERS", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "apt-get install bubblewrap" in done.stdout


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    import os

    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read_regular("file", 5, dir_fd=fd) == b"12345"
        for name in ("link", "fifo", "none", ".", "../file", "/dev/null"):
            with pytest.raises(OSError, match=r".+"):
                read_regular(name, 5, dir_fd=fd)
        with pytest.raises(OSError, match="more than 4 bytes"):
            read_regular("file", 4, dir_fd=fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="no regular file"):
        read_regular("/dev/zero", 5)
