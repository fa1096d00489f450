"""Trajectories are read back as they were written, from one file or a folder of shards."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

from palio.judging.store import VERDICTS
from palio.records import InputError, IntegrityError, Trajectory, from_json

SUFFIXES = (".jsonl", ".jsonl.zst")


def read_trajectories(path: Path | str) -> Iterator[Trajectory]:
    """Trajectories of a ``.jsonl`` or ``.jsonl.zst`` file, or of all such files of a folder.

    In a folder, files are read in the order of their names; names that start with a dot, and the
    verdicts that a race keeps beside its runs, are skipped. Rows come in file order.

    Raises:
        InputError: there is no such file, no trajectory file in the folder, or a line is no
            trajectory; names file and line.
    """
    path = Path(path)
    for file in trajectory_files(path):
        with file.open("rb") as raw:
            if file.name.endswith(".zst"):
                with zstandard.ZstdDecompressor().stream_reader(raw) as unpacked:
                    yield from _rows(io.BufferedReader(unpacked), file)
            else:
                yield from _rows(raw, file)


def trajectory_files(path: Path) -> list[Path]:
    """The files that `read_trajectories` reads, in order."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError("there is no such file or folder", where=str(path))
    files = [
        file
        for file in sorted(path.iterdir())
        if file.name.endswith(SUFFIXES) and not file.name.startswith(".") and file.name != VERDICTS
    ]
    if not files:
        raise InputError(
            "the folder holds no trajectory file",
            where=str(path),
            remedy=f"name a folder with {' or '.join(SUFFIXES)} files",
        )
    return files


def final_attempts(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """The last attempt of each run, in the order in which the runs first appear."""
    last: dict[tuple[str, ...], Trajectory] = {}
    for trajectory in trajectories:
        agent = trajectory.agent
        who = (agent.name, agent.version, agent.digest, agent.model)
        key = (*who, trajectory.problem_id, trajectory.catalogue_digest, str(trajectory.seed))
        held = last.get(key)
        if held is None or held.attempt <= trajectory.attempt:
            last[key] = trajectory
    return list(last.values())


def _rows(stream: Iterable[bytes], file: Path) -> Iterator[Trajectory]:
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield from_json(line, Trajectory, where=f"{file}:{number}")
    except zstandard.ZstdError as error:
        raise IntegrityError(
            f"the compressed file is damaged: {error}", where=f"{file}:{number + 1}"
        ) from error
