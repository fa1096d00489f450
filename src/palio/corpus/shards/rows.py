"""Rows of finished shards by (shard, row): small columns of all, texts of those asked for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from palio.corpus.candidate import Candidate
from palio.corpus.conversation import conversation_digest
from palio.corpus.readers.reading import OWN
from palio.corpus.shards.columns import SCHEMA, SMALL, calls_in, trajectories_of
from palio.corpus.shards.shard import MANIFEST, REJECTS, ROWS, ShardManifest, read_manifest
from palio.corpus.shards.storage import Folder, opened
from palio.records import InputError, Message, Problem, Trajectory, bytes_digest, to_json

_CALLS = "messages.list.element.tool_calls"


class ShardRows:
    """The rows of every finished shard of a folder.

    Args:
        folder: local, or an fsspec URL.
        problems: by id; a foreign trace is told kind and catalogue by its problem.

    Attributes:
        manifests: in the order of their names.

    Raises:
        InputError: no shard, a shard that is not whole, or shards of several configurations.
    """

    def __init__(self, folder: str, problems: Mapping[str, Problem]) -> None:
        self._folder = Folder(folder)
        self._problems = problems
        names = [n.removesuffix(MANIFEST) for n in self._folder.names() if n.endswith(MANIFEST)]
        found = [read_manifest(self._folder, name) for name in names]
        self.manifests: tuple[ShardManifest, ...] = tuple(one for one in found if one is not None)
        self._held: tuple[tuple[int, int], list[Trajectory]] | None = None
        if not self.manifests:
            raise InputError("no shards here", where=folder, remedy="run palio corpus shard first")
        if len({manifest.config_digest for manifest in self.manifests}) > 1:
            raise InputError(
                "the shards were made with several configurations",
                where=folder,
                remedy="run palio corpus shard again with one, over all inputs",
            )
        for manifest in self.manifests:
            for file, size in manifest.sizes.items():
                if self._folder.size(file) != size:
                    raise InputError(
                        "differs from its manifest",
                        where=self._folder.at(file),
                        remedy="run palio corpus shard again: it makes what is missing",
                    )

    def inputs(self) -> dict[str, str]:
        """Name -> digest of every shard's manifest."""
        return {f"shard:{one.name}": bytes_digest(to_json(one)) for one in self.manifests}

    def small(self) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """(number of the shard, its small columns), shard after shard."""
        for number in range(len(self.manifests)):
            yield number, self._table(number, list(SMALL)).to_pydict()

    def every(self, shard: int) -> Iterator[tuple[str, Trajectory]]:
        """(format, trajectory) of each row of a shard, as the shard has it."""
        for _, rows in self._groups(shard, range(self.manifests[shard].kept)):
            yield from zip(rows["format"].to_pylist(), trajectories_of(rows), strict=True)

    def lines(self, shard: int) -> list[int]:
        """Where each row of a shard stood in its input."""
        found: list[int] = self._table(shard, ["line"])["line"].to_pylist()
        return found

    def rejects(self, shard: int) -> bytes:
        """The packed lines of what a shard rejected."""
        return self._folder.read(self.manifests[shard].name + REJECTS) or b""

    def calls(self, shard: int) -> list[list[tuple[str, str]]]:
        """For each row of a shard the (tool, arguments) of its calls."""
        return calls_in(self._table(shard, [_CALLS])["messages"])

    def trajectories(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Trajectory]]:
        """The candidates with their trajectories, in order of shard and row.

        A trajectory has its candidate's id, which may have got a number, and its problem, which the
        request alone may have told.
        """
        wanted: dict[int, dict[int, Candidate]] = defaultdict(dict)
        for candidate in candidates:
            wanted[candidate.place[0]][candidate.place[1]] = candidate
        for shard in sorted(wanted):
            for places, rows in self._groups(shard, wanted[shard]):
                told = (places, rows["format"].to_pylist(), trajectories_of(rows))
                for at, form, one in zip(*told, strict=True):
                    candidate = wanted[shard][at]
                    yield candidate, one if form == OWN else self._referred(one, candidate)

    def messages(self, candidate: Candidate) -> Sequence[Message]:
        """The messages of one candidate; the row group is kept for its neighbours."""
        shard, row = candidate.place
        with opened(self._folder.at(self.manifests[shard].name + ROWS)) as stream:
            table = pq.ParquetFile(stream)
            start = 0
            for number in range(table.num_row_groups):
                size = table.metadata.row_group(number).num_rows
                if row < start + size:
                    break
                start += size
            if self._held is None or self._held[0] != (shard, number):
                self._held = (shard, number), list(trajectories_of(_whole(table, number)))
        return self._held[1][row - start].messages

    def told_apart(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates; those whose keys are equal with the digest of all that they say."""
        shared = Counter(candidate.conversation for candidate in candidates)
        alike = [one for one in candidates if shared[one.conversation] > 1]
        exact = {
            candidate.place: conversation_digest(trajectory.messages)
            for candidate, trajectory in self.trajectories(alike)
        }
        return [
            msgspec.structs.replace(one, conversation=exact[one.place])
            if one.place in exact
            else one
            for one in candidates
        ]

    def _referred(self, trajectory: Trajectory, candidate: Candidate) -> Trajectory:
        """A foreign trace as `palio.corpus.reading` refers it to its problem."""
        problem = self._problems[candidate.problem_id]
        return msgspec.structs.replace(
            trajectory,
            trajectory_id=candidate.trajectory_id,
            problem_id=problem.problem_id,
            kind=trajectory.kind or problem.kind,
            catalogue=trajectory.catalogue or problem.catalogue,
        )

    def _table(self, shard: int, columns: list[str]) -> pa.Table:
        with opened(self._folder.at(self.manifests[shard].name + ROWS)) as stream:
            return pq.ParquetFile(stream).read(columns=columns)

    def _groups(self, shard: int, wanted: Container[int]) -> Iterator[tuple[list[int], pa.Table]]:
        """(places, rows) of the wanted rows, a row group at a time; others are not read."""
        start = 0
        with opened(self._folder.at(self.manifests[shard].name + ROWS)) as stream:
            table = pq.ParquetFile(stream)
            for number in range(table.num_row_groups):
                end = start + table.metadata.row_group(number).num_rows
                places = [place for place in range(start, end) if place in wanted]
                if places:
                    yield places, _whole(table, number).take([at - start for at in places])
                start = end


def _whole(table: pq.ParquetFile, number: int) -> pa.Table:
    return table.read_row_group(number, columns=SCHEMA.names)
