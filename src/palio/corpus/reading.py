"""Traces of any kind are one stream of trajectories to a build, and none is lost without a count.

What `palio corpus import` reads is read here too: runs of palio's own and all foreign formats, from
files, folders, patterns and standard input. A foreign trace that says neither problem nor catalogue
is referred to the problem that has its request.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.reading import OWN
from palio.corpus.readers.sources import STDIN
from palio.records import InputError, Problem, Reject, Trajectory
from palio.suites.keys import normalise_text
from palio.world.artefacts import file_digest

MAX_BYTES = 256 << 20
"""Longest record that is read: a run may record 64 MB, and JSON escapes can double it twice."""


class TraceReader:
    """Streams the trajectories of files, folders, patterns and standard input.

    Args:
        names: what to read, "-" for standard input.
        max_bytes: longest record that is read.
        stdin: stream behind the name "-".
        problems: foreign traces of unknown problems are referred to these by their requests.

    Attributes:
        files: the files that will be read, in order.
        skipped: files of named folders that are passed over.
        rejects: records that are no trajectory so far; complete when the stream has ended.
        losses: how often reading a foreign record changed something, by code.
        formats: trajectories by format.

    Raises:
        InputError: a name matches nothing, or a folder holds no file that may be a trace.
    """

    def __init__(
        self,
        names: Sequence[str | Path],
        max_bytes: int = MAX_BYTES,
        *,
        stdin: BinaryIO | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        self._stdin = _Hashed(stdin) if stdin is not None else None
        self._import = TraceImport(
            names,
            max_bytes=max_bytes,
            stdin=self._stdin,  # type: ignore[arg-type] # only read() is asked for
            number_own=False,
        )
        self.files = tuple(self._import.files)
        self.skipped = self._import.skipped
        self._referral = Referral(problems)
        if not self.files:
            raise InputError(
                "holds no trajectory file",
                where=", ".join(str(name) for name in names),
                remedy="wanted: .jsonl, .json, .ndjson, .parquet, plain or packed",
            )

    @property
    def rejects(self) -> list[Reject]:
        """What was not read; the list itself, which grows while the stream is read."""
        return self._import.rejects

    @property
    def losses(self) -> Counter[str]:
        """Changes by code."""
        return self._import.losses

    @property
    def formats(self) -> Counter[str]:
        """Trajectories by format."""
        return self._import.formats

    @property
    def referred(self) -> int:
        """Foreign traces that found their problem by the request alone."""
        return self._referral.referred

    def __iter__(self) -> Iterator[Trajectory]:
        for found in self._import:
            foreign = found.format != OWN
            yield self._referral.of(found.trajectory) if foreign else found.trajectory

    def digests(self, *, stdin_only: bool = False) -> dict[str, str]:
        """Folder and name -> digest of each input, for a manifest; standard input's once read."""
        found = {}
        for name in self.files:
            if name != STDIN:
                if stdin_only:
                    continue
                file = Path(name)
                found[f"trajectories:{file.parent.name}/{file.name}"] = file_digest(file)
            elif self._stdin is not None:
                found["trajectories:stdin"] = self._stdin.digest()
        return found


class Referral:
    """Tells foreign traces which problem they are of.

    Args:
        problems: of all suites.

    Attributes:
        referred: traces that found their problem by the request alone.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.referred = 0
        self._by_id = {problem.problem_id: problem for problem in problems}
        self._by_request = _by_request(self._by_id.values())

    def of(self, trajectory: Trajectory) -> Trajectory:
        """A foreign trace with the problem that it is of, where that is beyond doubt."""
        problem = self._by_id.get(trajectory.problem_id)
        if problem is None:
            problem = self._by_request.get(normalise_text(trajectory.query))
            if problem is None:
                return trajectory
            self.referred += 1
        return msgspec.structs.replace(
            trajectory,
            problem_id=problem.problem_id,
            kind=trajectory.kind or problem.kind,
            catalogue=trajectory.catalogue or problem.catalogue,
        )


def _by_request(problems: Iterable[Problem]) -> dict[str, Problem]:
    """Normalised request -> its problem; requests of two problems name none."""
    found: dict[str, Problem] = {}
    twice: set[str] = set()
    for problem in problems:
        text = normalise_text(problem.query)
        if not text or text in found:
            twice.add(text)
        found[text] = problem
    return {text: problem for text, problem in found.items() if text not in twice}


class _Hashed:
    """A stream that knows the digest of what was read of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """``sha256:<64 hex digits>`` of the bytes so far."""
        return f"sha256:{self._hash.hexdigest()}"
