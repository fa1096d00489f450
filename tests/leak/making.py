"""Corpora of requests in people's words, and the hands that spoil them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from palio.corpus.build import build
from palio.corpus.config import POOLS, CorpusConfig
from palio.corpus.rows import table_of
from palio.records import Problem, bytes_digest, to_json
from palio.world.synthesis import full_config, synthesise
from tests.corpus.making import made_row
from tests.suites.making import made_problem

THIRDS = {"train": 0.5, "development": 0.2, "heldout": 0.3}
CONFIG = CorpusConfig(fractions=THIRDS, salt="leak")
ADJECTIVES = (  # noqa: SIM905
    "walnut velvet copper granite bamboo crimson turquoise magnetic foldable waterproof vintage "
    "titanium ceramic quilted striped transparent inflatable wireless ergonomic scented"
).split()
NOUNS = (  # noqa: SIM905
    "teapot hammock lantern violin skateboard telescope blender backpack mattress aquarium "
    "typewriter chandelier tripod kettlebell projector accordion birdhouse toaster umbrella wok"
).split()
PARTS = (  # noqa: SIM905
    "zipper handle lid strap hinge nozzle tray hook drawer cushion valve antenna blade socket "
    "pedal mirror buckle spout latch caster"
).split()


def wish(number: int) -> str:
    """A request like no other one: seven words that only few of the others have."""
    rng = random.Random(number)
    one, two = rng.sample(ADJECTIVES, 2)
    noun, part = rng.choice(NOUNS), rng.choice(PARTS)
    return (
        f"I am looking for a {one} {two} {noun} mk{number} with a {part}{number % 17} and "
        f"code{number * 7}, priced below {50 + number} pesos."
    )


def people(count: int) -> tuple[Problem, ...]:
    """Problems as imported suites have them: no family, own products, own words."""
    return tuple(
        made_problem(
            f"p{n:03}", (str(90_000 + n),), query=wish(n), catalogue="", source="people.jsonl"
        )
        for n in range(count)
    )


def synthetic(count: int, seed: int = 1) -> tuple[Problem, ...]:
    """Problems of a full synthetic world, families and all."""
    return synthesise(full_config(seed, products=max(600, 10 * count), problems=count)).problems


def without_families(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """The same problems as an importer would see them."""
    return tuple(
        msgspec.structs.replace(problem, families=(), source="imported") for problem in problems
    )


def corpus(
    folder: Path, problems: tuple[Problem, ...], config: CorpusConfig = CONFIG, runs: int = 2
) -> Path:
    """A corpus with `runs` rows of each problem."""
    rows = [
        made_row(f"t{place:04}-{run}", problem, agent=f"agent-{run}")
        for place, problem in enumerate(problems)
        for run in range(runs)
    ]
    build(rows, problems, config, folder)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON lines as palio does: no white space, text unescaped."""
    data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    path.write_bytes(data)
    if path.stem in POOLS:
        import pyarrow.parquet as pq

        table = table_of(data) if data else pq.read_table(path.with_suffix(".parquet"))[:0]
        pq.write_table(table, path.with_suffix(".parquet"), compression="zstd")


def edited(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON document in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def reseal(folder: Path) -> None:
    """Give every file the digest that it now has: what a careful forger does."""

    def digests(files: dict[str, str]) -> None:
        for name in files:
            files[name] = bytes_digest((folder / name).read_bytes())

    edited(folder / "certificate.json", lambda document: digests(document["files"]))
    edited(folder / "manifest.json", lambda document: digests(document["outputs"]))


def inject(folder: Path, pool: str, problem: Problem, like: str, name: str = "injected") -> str:
    """Add a problem with one row to a pool, everywhere where a build would name it.

    Args:
        folder: the corpus.
        pool: where it goes.
        problem: the new problem.
        like: trajectory id of the row whose conversation it gets, with its own request.
        name: its trajectory id.
    """
    rows = [row for each in POOLS for row in lines(folder / f"{each}.jsonl")]
    row = next(row for row in rows if row["trajectory_id"] == like)
    row = json.loads(json.dumps(row))
    row |= {"trajectory_id": name, "problem_id": problem.problem_id, "cluster_id": "c-" + "0" * 16}
    for message in row["messages"]:
        if message["role"] == "user":
            message["content"] = problem.query
    write(folder / f"{pool}.jsonl", [*lines(folder / f"{pool}.jsonl"), row])
    origin = {"pool": pool, "trajectory_id": name, "problem_id": problem.problem_id}
    origin["cluster_id"] = row["cluster_id"]
    write(folder / "provenance.jsonl", [*lines(folder / "provenance.jsonl"), origin])
    known = lines(folder / "problems.jsonl")
    if problem.problem_id not in {each["problem_id"] for each in known}:
        write(folder / "problems.jsonl", [*known, json.loads(to_json(problem))])
        edited(folder / "pools.json", lambda pools: pools.update({problem.problem_id: pool}))
    return name


def first_of(folder: Path, pool: str, skip: int = 0) -> tuple[str, str]:
    """Problem and trajectory id of a row of a pool."""
    row = lines(folder / f"{pool}.jsonl")[skip]
    return row["problem_id"], row["trajectory_id"]
