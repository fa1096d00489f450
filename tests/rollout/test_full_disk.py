"""A disk that fills up while runs are written leaves whole lines only, and says of which file."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from palio.records import ConfigError, from_json
from palio.records.trajectory import Trajectory
from palio.rollout.journal import FILE, Journal, lock_folder
from tests.evaluate.sample import trajectory


def test_what_another_thread_writes_next_is_not_glued_to_half_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [100]

    def half(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(fd, data[: room[0]])
        room[0] -= taken
        return taken

    one, two = (trajectory(trajectory_id=name) for name in ("one", "two"))
    with Journal(tmp_path) as journal:
        monkeypatch.setattr("palio.rollout.journal.os.write", half)
        with pytest.raises(OSError, match="No space left") as error:
            journal.append(one)
        assert error.value.filename == str(tmp_path / FILE)
        monkeypatch.undo()
        journal.append(two)
    lines = (tmp_path / FILE).read_bytes().splitlines()
    assert [from_json(line, Trajectory).trajectory_id for line in lines] == ["two"]
    with Journal(tmp_path) as journal:
        assert list(journal.endings) == ["two"]


def test_a_file_system_without_locks_is_not_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with lock_folder(tmp_path), pytest.raises(ConfigError, match="another process"):
        lock_folder(tmp_path)
    monkeypatch.setattr(fcntl, "flock", unable)
    with pytest.raises(OSError, match="No locks available") as error:
        lock_folder(tmp_path)
    assert error.value.filename == str(tmp_path)
