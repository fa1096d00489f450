"""The finished files are read again, and a corpus whose pools share anything does not appear."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from palio.corpus.config import POOLS
from palio.corpus.funnel import PoolCount
from palio.records import IntegrityError, Problem, Record, from_json
from palio.suites.keys import normalise_text
from palio.suites.pools import check_disjoint


class _Head(Record, frozen=True):
    role: str
    content: str | None = None


class _Row(Record, frozen=True):
    """The part of a corpus row that can leak; the rest is skipped while parsing."""

    messages: tuple[_Head, ...]
    trajectory_id: str
    problem_id: str
    cluster_id: str

    def texts(self) -> tuple[str, ...]:
        """What the user said, normalised."""
        said = [message.content or "" for message in self.messages if message.role == "user"]
        return tuple(normalise_text(text) for text in said[:1])


def check_corpus(folder: Path, problems: Mapping[str, Problem]) -> dict[str, PoolCount]:
    """Recompute from the rows that the pools share nothing, and count what they hold.

    Compares trajectory ids, cluster ids and user texts of the rows, and, through their problems,
    the rules of `palio.suites.pools.check_disjoint`. Compares row counts of JSONL and Parquet.

    Raises:
        IntegrityError: two pools share something; names the rule and both rows.
    """
    owners: dict[str, dict[str, tuple[str, str]]] = {
        rule: {} for rule in ("trajectory", "row cluster", "user text")
    }
    used: dict[str, dict[str, Problem]] = {}
    counts = {}
    for pool in POOLS:
        path = folder / f"{pool}.jsonl"
        used[pool] = {}
        rows = 0
        with path.open("rb") as file:
            for rows, line in enumerate(file, start=1):
                row = from_json(line, _Row, where=f"{path}:{rows}")
                used[pool][row.problem_id] = problems[row.problem_id]
                _claim(owners["trajectory"], "trajectory", (row.trajectory_id,), pool, row)
                _claim(owners["row cluster"], "row cluster", (row.cluster_id,), pool, row)
                _claim(owners["user text"], "user text", row.texts(), pool, row)
        stored = pq.read_metadata(folder / f"{pool}.parquet").num_rows
        if stored != rows:
            raise IntegrityError(f"{pool}.jsonl has {rows} rows, {pool}.parquet {stored}")
        counts[pool] = PoolCount(
            rows=rows,
            problems=len(used[pool]),
            clusters=sum(1 for held in owners["row cluster"].values() if held[0] == pool),
            queries=sum(1 for held in owners["user text"].values() if held[0] == pool),
        )
    check_disjoint({pool: list(held.values()) for pool, held in used.items()})
    return counts


def _claim(
    owner: dict[str, tuple[str, str]], rule: str, keys: tuple[str, ...], pool: str, row: _Row
) -> None:
    for key in keys:
        held = owner.setdefault(key, (pool, row.trajectory_id))
        if held[0] != pool:
            raise IntegrityError(
                f"pools {held[0]!r} and {pool!r} share {rule} {key[:80]!r}: "
                f"rows {held[1]} and {row.trajectory_id}",
                remedy="give every problem of a suite its own text, or build with the text edge",
            )
