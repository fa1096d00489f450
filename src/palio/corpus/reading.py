"""Trajectory files are read once, line by line; a line that is none is kept as a counted reject.

A line is palio's own trajectory or a chat row (`palio.corpus.readers.chat`), told by its keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from palio.corpus.readers.chat import is_chat_row, read_chat
from palio.corpus.readers.losses import UnreadableError
from palio.records import InputError, Reject, Trajectory
from palio.world.artefacts import file_digest
from palio.world.lines import read_lines

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
OWN = {"trajectory_id", "events", "messages"}
"""Keys that only palio's own trajectories have together."""
MAX_BYTES = 256 << 20
"""Longest line that is read: a run may record 64 MB, and JSON escapes can double it twice."""


class TraceReader:
    """Streams the trajectories of files and folders.

    Attributes:
        files: the files that will be read, in order.
        rejects: lines that are no trajectory so far; complete when the stream has ended.
        losses: how often reading a foreign row changed something, by code.

    Raises:
        InputError: a path does not exist, or a folder holds no trajectory file.
    """

    def __init__(self, paths: Sequence[Path], max_bytes: int = MAX_BYTES) -> None:
        self.files = tuple(dict.fromkeys(file for path in paths for file in trace_files(path)))
        self.rejects: list[Reject] = []
        self.losses: Counter[str] = Counter()
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[Trajectory]:
        decode = msgspec.json.Decoder(Trajectory).decode
        for file in self.files:
            for line in read_lines(file, max_bytes=self._max_bytes):
                if line.fault:
                    self._reject(file, line.number, line.fault, line.detail)
                    continue
                try:
                    yield decode(line.data)
                except msgspec.ValidationError as error:
                    foreign = self._foreign(line.data, file, line.number, str(error))
                    if foreign is not None:
                        yield foreign
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    self._reject(file, line.number, "json", str(error))

    def _foreign(self, data: bytes, file: Path, line: int, why: str) -> Trajectory | None:
        """The trajectory of a chat row; None, and a reject, when it is none."""
        try:
            row = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            self._reject(file, line, "json", str(error))
            return None
        # A damaged record of palio's own has messages too, but its events must not be lost quietly.
        if not is_chat_row(row) or row.keys() >= OWN:
            self._reject(file, line, "type", why)
            return None
        try:
            trajectory, losses = read_chat(row, f"chat:{file.name}")
        except (UnreadableError, InputError) as error:
            self._reject(file, line, getattr(error, "reason", "type"), error.what)
            return None
        self.losses.update(loss.code for loss in losses)
        return trajectory

    def _reject(self, file: Path, line: int, reason: str, detail: str) -> None:
        self.rejects.append(Reject(file=str(file), line=line, reason=reason, detail=detail))

    def digests(self) -> dict[str, str]:
        """Folder and name -> digest of each input file, for a manifest."""
        return {
            f"trajectories:{file.parent.name}/{file.name}": file_digest(file) for file in self.files
        }


def trace_files(path: Path) -> tuple[Path, ...]:
    """The trajectory files that a path names: itself, or those of a folder in name order.

    In a folder with files called `trajectories*` only those count, since verdicts and other lines
    lie beside them.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise InputError("no such file or folder", where=str(path), remedy="check the path")
    files = sorted(p for p in path.rglob("*.jsonl*") if p.name.endswith(SUFFIXES) and p.is_file())
    files = [p for p in files if not p.name.startswith((".", "verdicts"))]
    files = [p for p in files if p.name.startswith("trajectories")] or files
    if not files:
        raise InputError(
            "holds no trajectory file", where=str(path), remedy=f"wanted: {', '.join(SUFFIXES)}"
        )
    return tuple(files)
