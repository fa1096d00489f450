"""Corpora of made rows for the tests of days, take-downs and differences."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from hypothesis import strategies as st

from palio.corpus.build import build
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.funnel import Funnel
from palio.corpus.spool import REJECTS
from palio.records import Problem
from palio.rollout.verdicts import Judged
from tests.corpus.making import good_turns, made_row

CONFIG = CorpusConfig(
    fractions={"train": 0.4, "development": 0.3, "heldout": 0.3},
    salt="s",
    per_problem=2,
    per_cluster=3,
    same_calls=False,
    near_duplicates=0.8,
)
AGENTS = ("ann", "bob", "cid")
SOURCES = ("rollout", "chat:day-1.jsonl", "chat:day-2.jsonl")


@st.composite
def made_rows(
    draw: st.DrawFn, problems: Sequence[Problem], prefix: str, least: int = 0, most: int = 9
) -> list[Judged]:
    """Rows that collide often: equal conversations, near ones, failures, strays, repeated ids."""
    rows = []
    for number in range(draw(st.integers(least, most))):
        problem = draw(st.sampled_from(problems))
        note = draw(st.sampled_from(["", "one", "one two", "other words than these here"]))
        product = problem.rewards[0].product_id
        rows.append(
            made_row(
                f"{prefix}{number}",
                problem,
                good_turns(product, note),
                agent=draw(st.sampled_from(AGENTS)),
                source=draw(st.sampled_from(SOURCES)),
                success=draw(st.sampled_from([True, True, True, False])),
                quality=draw(st.sampled_from([None, 0.9, 0.9, 0.9])),
            )
        )
    return rows


def built(rows: Iterable[Judged], problems: Iterable[Problem], out: Path, **fields: Any) -> Funnel:
    return build(rows, problems, fields.pop("config", CONFIG), out, **fields)


def published(folder: Path) -> dict[str, bytes]:
    """What a corpus says: rows, lineage, split, counts; not the manifest, which names inputs."""
    names = [f"{pool}.{kind}" for pool in POOLS for kind in ("jsonl", "parquet")]
    names += ["provenance.jsonl", "funnel.json", "pools.json"]
    return {name: (folder / name).read_bytes() for name in names}


def rejects(folder: Path, *, bodies: bool = True) -> list[str]:
    """The rejects in an order of their own, without what only the host knew of a run."""
    with (folder / REJECTS).open("rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
        rows = [json.loads(line) for line in text]
    for row in rows:
        body = row.get("judged")
        if not bodies:
            row.pop("judged", None)
        elif body:
            for key in ("events", "answer", "ending", "eligible"):
                body["trajectory"].pop(key, None)
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def without(rows: Iterable[Judged], **named: Sequence[str]) -> list[Judged]:
    """The rows that no agent, source, problem or trajectory id names."""
    return [
        row
        for row in rows
        if row.trajectory.agent.name not in named.get("agents", ())
        and row.trajectory.source not in named.get("sources", ())
        and row.trajectory.problem_id not in named.get("problems", ())
        and row.trajectory.trajectory_id not in named.get("trajectories", ())
    ]


def renamed(row: Judged, **fields: Any) -> Judged:
    return msgspec.structs.replace(
        row, trajectory=msgspec.structs.replace(row.trajectory, **fields)
    )
