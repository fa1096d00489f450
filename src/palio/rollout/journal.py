"""Trajectories are on disk before they count: a killed run loses none and repeats none."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import IO, Self

import msgspec

from palio.records import ConfigError, Ending, IntegrityError, Trajectory, to_json
from palio.world.appended import mend_end, whole_lines
from palio.world.artefacts import naming

FILE = "trajectories.jsonl"


class Entry(msgspec.Struct):
    """What resume needs to know of a finished run."""

    trajectory_id: str
    ending: Ending = Ending.returned


class Journal:
    """Append-only ``trajectories.jsonl`` of one run folder, held by one process at a time.

    Opening it reads what is there. A last line that a killed process left half-written is moved to
    ``torn-N.part`` beside it; a last line that is whole but for its end is completed.

    Args:
        folder: the run folder; made if missing.

    Raises:
        ConfigError: another process is writing into the folder.
        IntegrityError: a line that is not the last one is no trajectory.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self.torn: tuple[str, ...] = ()
        self.endings: dict[str, Ending] = {}
        self._lock = threading.Lock()
        self._guard = lock_folder(folder)
        try:
            self._recover()
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            _sync_folder(folder)
        except BaseException:
            self._guard.close()
            raise

    def append(self, trajectory: Trajectory) -> None:
        """Write one trajectory; when this returns it is on disk. Safe from many threads.

        Where the disk does not take all of it nothing of it stays: what another thread writes next
        would be glued to it.
        """
        line = to_json(trajectory) + b"\n"
        with self._lock, naming(self.path):
            whole = os.fstat(self._fd).st_size
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._fd, line[written:])
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, whole)
                raise
            self.endings[trajectory.trajectory_id] = trajectory.ending

    def close(self) -> None:
        """Give the folder free."""
        os.close(self._fd)
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self) -> None:
        for line in whole_lines(self.path):
            entry = _entry(line.data)
            if entry is None:
                raise IntegrityError(
                    "this line is no trajectory",
                    where=line.where,
                    remedy="move the line out of the file, then resume: the run is made again",
                )
            self.endings[entry.trajectory_id] = entry.ending
        mend_end(self.path, aside=self._set_aside)

    def _set_aside(self, torn: bytes) -> None:
        number = 1
        while (aside := self.path.with_name(f"torn-{number}.part")).exists():
            number += 1
        with aside.open("xb") as stream:
            stream.write(torn)
            stream.flush()
            os.fsync(stream.fileno())
        self.torn = (f"{len(torn)} bytes of a half-written trajectory were moved to {aside.name}",)


def _entry(line: bytes) -> Entry | None:
    try:
        return msgspec.json.decode(line, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def lock_folder(folder: Path) -> IO[bytes]:
    """Hold a run folder until the returned file is closed or the process ends.

    Raises:
        ConfigError: another process holds it.
    """
    guard = (folder / ".lock").open("ab")
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        guard.close()
        if not isinstance(error, BlockingIOError):  # a file system without locks
            error.filename = str(folder)
            raise
        raise ConfigError(
            "another process is running in this folder",
            where=str(folder),
            remedy="wait for it, or choose another folder",
        ) from error
    return guard


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
