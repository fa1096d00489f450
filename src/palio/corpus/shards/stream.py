"""The rows of shards come as traces come to a build: ids told apart, strangers referred.

What the shards rejected is gone through as well, by its ids: of two runs with one id a build takes
the first, also where a gate then rejects it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import zstandard
from msgspec.structs import replace

from palio.corpus.config import CorpusConfig
from palio.corpus.gates import Drop
from palio.corpus.readers.reading import OWN
from palio.corpus.reading import Referral
from palio.corpus.shards.rows import ShardRows
from palio.records import Problem, Trajectory
from palio.rollout.verdicts import Judged


class GoneRow(msgspec.Struct, frozen=True):
    """What is read of a row that a shard rejected."""

    line: int
    trajectory_id: str = ""
    problem_id: str = ""


class Ids:
    """The ids of all rows so far, in order of shard and line, rejected ones included.

    Args:
        problems: of which runs are known.

    Attributes:
        gone: ids of palio's own runs that stood first in a row that a shard rejected.
    """

    def __init__(self, problems: Mapping[str, Problem]) -> None:
        self.gone: set[str] = set()
        self._problems = problems
        self._ids: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def told(self, given: str, form: str) -> str:
        """The id of the next row; a foreign one that came before gets a number.

        Strangers number their rows as they like; an own run with the id of another is that run.
        """
        name = given
        while form != OWN and name in self._ids:
            self._repeats[given] += 1
            name = f"{given}-{self._repeats[given] + 1}"
        self._ids.add(name)
        return name

    def of(self, rows: ShardRows, shard: int, lines: Iterator[int]) -> Iterator[int]:
        """The lines of a shard's rows, with what was rejected before each taken note of."""
        own = OWN in rows.manifests[shard].formats
        gone = _rejected(rows.rejects(shard))
        waiting = next(gone, None)
        for line in lines:
            while waiting is not None and waiting.line <= line:
                self._pass(waiting, own=own)
                waiting = next(gone, None)
            yield line
        while waiting is not None:
            self._pass(waiting, own=own)
            waiting = next(gone, None)

    def _pass(self, row: GoneRow, *, own: bool) -> None:
        if not row.trajectory_id:
            return  # a record that could not be read
        if not own:
            self.told(row.trajectory_id, "")
        elif row.problem_id in self._problems and row.trajectory_id not in self._ids:
            self.gone.add(row.trajectory_id)


class ShardStream:
    """All rows of finished shards, in order of shard and line.

    Args:
        rows: of the shards.
        problems: by id; a foreign trace finds its own by its request.
    """

    def __init__(self, rows: ShardRows, problems: Mapping[str, Problem]) -> None:
        self._rows = rows
        self._problems = problems
        self._ids = Ids(problems)

    def __iter__(self) -> Iterator[Trajectory]:
        referral = Referral(self._problems.values())
        for shard in range(len(self._rows.manifests)):
            lines = self._ids.of(self._rows, shard, iter(self._rows.lines(shard)))
            for _, (form, one) in zip(lines, self._rows.every(shard), strict=True):
                name = self._ids.told(one.trajectory_id, form)
                named = one if name == one.trajectory_id else replace(one, trajectory_id=name)
                yield named if form == OWN else referral.of(named)

    def refuse(self, judged: Judged, _config: CorpusConfig) -> Drop | None:
        """A run whose id stood first in a row that the shards rejected is a repetition of it."""
        return REPEATED if judged.trajectory.trajectory_id in self._ids.gone else None


REPEATED = Drop(reason="repeated_id", detail="a row with this trajectory id came before")


def _rejected(data: bytes) -> Iterator[GoneRow]:
    decode = msgspec.json.Decoder(GoneRow).decode
    with zstandard.ZstdDecompressor().stream_reader(data) as stream:
        for line in io.BufferedReader(stream):
            yield decode(line)
