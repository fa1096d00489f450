"""Stages run once, resume after a kill, and refuse what was made under other settings."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from palio.evaluate.mainjob.stages import PeakMemory, Stages, write_atomically
from palio.records import InputError, IntegrityError, Record, ResumeError
from tests.mainjob.silent import SilentReporter


class Settings(Record, frozen=True):
    names: tuple[str, ...] = ("a", "b")
    seed: int = 0
    size: int = 1


def stages(out: Path, **settings: int) -> Stages:
    return Stages(out, Settings(seed=7, names=("b",), **settings), SilentReporter())


def test_a_finished_stage_is_not_run_again(tmp_path: Path) -> None:
    runs = []

    def work(folder: Path) -> dict[str, int]:
        runs.append(folder)
        return {"rows": 3}

    assert stages(tmp_path).run("world", {"a": 1}, work) == {"rows": 3}
    again = stages(tmp_path)
    assert again.run("world", {"a": 1}, work) == {"rows": 3}
    assert runs == [tmp_path / "world"]
    assert again.seconds > 0
    assert again.peak_rss_mb > 1


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    stages(tmp_path).run("world", {"a": 1}, lambda _: {})
    with pytest.raises(IntegrityError, match="other inputs.*remove"):
        stages(tmp_path).run("world", {"a": 2}, lambda _: {})


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    stages(tmp_path).run("world", 1, lambda _: {})
    with pytest.raises(ResumeError, match="size.*another --out"):
        stages(tmp_path, size=2)


def test_settings_under_which_no_stage_was_finished_can_be_corrected(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, int]:
        (folder / "half").touch()
        raise InputError("cannot be made so")

    with pytest.raises(InputError):
        stages(tmp_path).run("world", 1, fail)
    corrected = stages(tmp_path, size=2)
    held = {"rows": 3}
    assert corrected.run("world", 2, lambda folder: held | {"old": [*folder.iterdir()]}) == {
        "rows": 3,
        "old": [],
    }
    with pytest.raises(ResumeError, match="size"):
        stages(tmp_path)
    assert stages(tmp_path, size=2).run("world", 2, fail)["rows"] == 3


def test_a_stage_that_was_begun_goes_on_under_its_own_settings(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, int]:
        (folder / "half").touch()
        raise InputError("not now")

    with pytest.raises(InputError):
        stages(tmp_path).run("world", 1, fail)
    found = stages(tmp_path).run("world", 1, lambda folder: {"half": (folder / "half").exists()})
    assert found == {"half": True}


def test_a_failed_stage_leaves_no_mark(tmp_path: Path) -> None:
    def fail(_: Path) -> dict[str, int]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        stages(tmp_path).run("world", 1, fail)
    assert stages(tmp_path).run("world", 1, lambda _: {"ok": 1}) == {"ok": 1}


def test_kill_in_a_stage_repeats_only_that_stage(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from tests.mainjob.test_stages import stages
        out = Path(sys.argv[1])
        def log(name):
            with (out / "log").open("a") as file:
                file.write(name + "\\n")
            return {}
        run = stages(out)
        run.run("one", 1, lambda _: log("one"))
        def two(_):
            log("two")
            if sys.argv[2] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            return {}
        run.run("two", 1, two)
        """
    )
    root = Path(__file__).parents[2]
    codes = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), mode], cwd=root, check=False
        ).returncode
        for mode in ("die", "live")
    ]
    assert codes == [-signal.SIGKILL, 0]
    assert (tmp_path / "log").read_text().split() == ["one", "two", "two"]


def test_peak_memory_sees_children() -> None:
    with PeakMemory(interval_s=0.05) as memory:
        subprocess.run(
            [sys.executable, "-c", "import time; x = b'x' * 200_000_000; time.sleep(0.6)"],
            check=True,
        )
    assert memory.peak_mb > 200


def test_a_damaged_configuration_is_told_with_its_file(tmp_path: Path) -> None:
    stages(tmp_path)
    for damage in (b'{"seed":7,', b"7"):
        (tmp_path / "config.json").write_bytes(damage)
        with pytest.raises(ResumeError, match="cannot be read") as caught:
            stages(tmp_path)
        assert caught.value.where == str(tmp_path / "config.json")


def test_atomic_write_leaves_no_temporary(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
