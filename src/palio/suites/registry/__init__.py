"""Public benchmarks are known by hashes of their keys, so that no corpus holds them unseen.

An entry holds no text and no product id. A problem is known when a hash of its normalised text, of
its reward specification or of a ground-truth product is one of the entry's; a paraphrase is found
only with the benchmark's task file (`palio corpus decontaminate`). `scripts/registry_entry.py`
writes an entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import resources

from palio.records import Problem, Record, from_json
from palio.suites.keys import keys_of

REGISTRY_RULES = ("product", "spec", "text")
HASH_DIGITS = 20
"""80 bits: a million foreign keys meet 5,000 known ones by chance once in 2e14 corpora."""


class Benchmark(Record, frozen=True, omit_defaults=False):
    """The fingerprints of one public benchmark.

    Attributes:
        keys: rule -> sorted hashes.
        tasks: problems that were hashed.
    """

    name: str
    version: str
    source: str
    licence: str
    tasks: int
    keys: dict[str, tuple[str, ...]]


class Known(Record, frozen=True, omit_defaults=False):
    """A problem that is one of a public benchmark, by one rule."""

    problem_id: str
    benchmark: str
    rule: str


def fingerprint(rule: str, key: str) -> str:
    """The hash of one key: of SHA-256 over format name, rule and key, the first 20 hex digits."""
    data = f"palio-registry-1\0{rule}\0{key}".encode()
    return hashlib.sha256(data).hexdigest()[:HASH_DIGITS]


def fingerprints(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Hashes of a problem by rule.

    Products are hashed without their catalogue, since a benchmark's ids mean the same products
    everywhere. A synthetic problem has no product of a public benchmark, whatever its ids are.
    """
    keys = {rule: keys_of(problem, rule) for rule in ("spec", "text")}
    synthetic = problem.source == "generated" and bool(problem.families)
    ids = {reward.product_id for reward in problem.rewards if reward.product_id}
    keys["product"] = () if synthetic else tuple(sorted(ids))
    return {rule: tuple(fingerprint(rule, key) for key in keys[rule]) for rule in REGISTRY_RULES}


def entry_of(
    problems: Iterable[Problem], *, name: str, version: str, source: str, licence: str
) -> Benchmark:
    """The registry entry of a benchmark's problems."""
    found: dict[str, set[str]] = {rule: set() for rule in REGISTRY_RULES}
    tasks = 0
    for problem in problems:
        tasks += 1
        for rule, hashes in fingerprints(problem).items():
            found[rule].update(hashes)
    keys = {rule: tuple(sorted(hashes)) for rule, hashes in found.items()}
    return Benchmark(
        name=name, version=version, source=source, licence=licence, tasks=tasks, keys=keys
    )


def known_benchmarks() -> tuple[Benchmark, ...]:
    """All entries that ship with palio, by name."""
    folder = resources.files("palio.suites.registry")
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".json"))
    return tuple(
        from_json((folder / name).read_bytes(), Benchmark, where=f"registry {name}")
        for name in files
    )


def known_problems(
    problems: Iterable[Problem], benchmarks: Iterable[Benchmark] | None = None
) -> tuple[Known, ...]:
    """Every problem that is in a benchmark, once for each rule that finds it."""
    entries = tuple(benchmarks) if benchmarks is not None else known_benchmarks()
    owners = [
        (entry.name, rule, frozenset(entry.keys.get(rule, ())))
        for entry in entries
        for rule in REGISTRY_RULES
    ]
    return tuple(
        Known(problem_id=problem.problem_id, benchmark=name, rule=rule)
        for problem in problems
        for own in (fingerprints(problem),)
        for name, rule, hashes in owners
        if not hashes.isdisjoint(own[rule])
    )
