"""Thousands of inline runs over many small worlds: one shard a world, finished shards are kept."""

from __future__ import annotations

import io
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import zstandard

from palio import __version__
from palio.agents.spec import AgentSpec
from palio.broker.limits import Limits
from palio.broker.session import Clock
from palio.broker.upstream import Upstream
from palio.records import (
    ConfigError,
    InputError,
    PalioError,
    Problem,
    Provenance,
    Record,
    digest,
    to_json,
)
from palio.rollout.cluster import ExecutorName, executor_named, on_ray
from palio.rollout.config import agents_config, hold_config
from palio.rollout.journal import lock_folder
from palio.rollout.problem import run_problem
from palio.rollout.workers import hear_interrupts, starting_workers
from palio.sandbox.inline import InlineDriver
from palio.world.artefacts import (
    MANIFEST,
    file_digest,
    read_manifest,
    replacing,
    write_manifest,
)
from palio.world.tools import SEVEN_TOOLS
from palio.world.world import World


class WorldSource(Protocol):
    """Makes a world and its problems; picklable, e.g. a `functools.partial` of a function."""

    def __call__(self) -> tuple[World, Sequence[Problem]]:
        """The world and the problems to be run in it."""


@dataclass(frozen=True)
class Shard:
    """All runs in one world; one file. Everything in it must be picklable.

    Attributes:
        name: file name without suffix, e.g. "compact-7".
        source: makes the world and its problems in the worker.
        agents: each runs on each problem with each seed.
        upstream: makes the model server in the worker, e.g. the class `ScriptedUpstream`.
        seeds: one run each.
        config: what decides the outcome and cannot be seen from the fields above, such as the
            configuration of the synthesis; compared on resume.
    """

    name: str
    source: WorldSource
    agents: tuple[AgentSpec, ...]
    upstream: Callable[[], Upstream | None]
    seeds: tuple[int, ...] = (0,)
    config: Mapping[str, Any] = field(default_factory=dict)


Ended = tuple[Shard, dict[str, int]]
"""A shard, and how many of its runs ended how."""


class BulkReport(Record, frozen=True):
    """What a call of `bulk` did; `endings` counts the trajectories of all shards."""

    shards: int
    skipped: int
    trajectories: int
    endings: dict[str, int]
    seconds: float


def bulk(
    shards: Sequence[Shard],
    out: Path,
    *,
    workers: int = 2,
    executor: ExecutorName = "processes",
    address: str = "",
    limits: Limits | None = None,
    tools: Sequence[str] = SEVEN_TOOLS,
    command: str = "",
    progress: Callable[[int, int, int], None] | None = None,
    clock: Clock = time.monotonic,
) -> BulkReport:
    """Run all shards that are not finished in `out`; each is ``NAME.jsonl.zst`` and a manifest.

    A shard appears whole or not at all. A finished one is skipped if it was made with the same
    settings and its file still has the recorded digest.

    Args:
        shards: the work; names must differ.
        out: folder of the shards; on a cluster one that every node sees.
        workers: processes; 0: all in this process.
        executor: "processes" of this machine, "inline" in this process, or "ray"; decides no row.
        address: of a running Ray cluster, "" to start a local one.
        limits: of each run; the wall clock is only checked when an agent calls the broker.
        tools: names of the tools that the policy harness is told about.
        command: how to run the same again, for messages.
        progress: called in this process with (shards done, shards, trajectories so far).
        clock: seconds.

    Raises:
        ConfigError: two shards have the same name, an agent has no file to run, or there is no such
            executor.
        MissingDependencyError: "ray" without the package.
        ResumeError: a finished shard was made with other settings; names the keys that differ.
    """
    _check(shards)
    executor = executor_named(executor, workers) if workers else "inline"
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    limits = limits or Limits()
    started = clock()
    with lock_folder(out):
        run = partial(run_shard, out=out.resolve(), limits=limits, tools=tuple(tools))
        way = partial(_carried_out, executor=executor, run=run, workers=workers, address=address)
        settings = {shard.name: shard_config(shard, limits, tools) for shard in shards}
        done, skipped = _run_open(shards, out, settings, way, command, progress)
    endings: Counter[str] = Counter()
    for counts in done.values():
        endings.update(counts)
    return BulkReport(
        shards=len(shards),
        skipped=skipped,
        trajectories=sum(endings.values()),
        endings=dict(sorted(endings.items())),
        seconds=round(clock() - started, 3),
    )


def _run_open(
    shards: Sequence[Shard],
    out: Path,
    settings: Mapping[str, Mapping[str, Any]],
    way: Callable[[Sequence[Shard]], Iterator[Ended]],
    command: str,
    progress: Callable[[int, int, int], None] | None,
) -> tuple[dict[str, dict[str, int]], int]:
    """Run what is not finished: endings by shard, and how many shards were skipped."""
    done: dict[str, dict[str, int]] = {}
    for shard in shards:
        hold_config(out / "shards" / shard.name, "bulk-shard", settings[shard.name], command)
        for stale in out.glob(f".{shard.name}.jsonl.zst.*.tmp"):
            stale.unlink()  # a killed worker's; the lock says that nobody writes it now
        finished = _finished(out, shard.name)
        if finished is not None:
            done[shard.name] = finished
    skipped = len(done)
    for shard, counts in way([shard for shard in shards if shard.name not in done]):
        done[shard.name] = counts
        if progress is not None:
            progress(len(done), len(shards), sum(sum(each.values()) for each in done.values()))
    return done, skipped


def _carried_out(
    shards: Sequence[Shard],
    *,
    executor: ExecutorName,
    run: Callable[[Shard], dict[str, int]],
    workers: int,
    address: str,
) -> Iterator[Ended]:
    """Each shard with its endings, as they end."""
    if executor == "inline":
        return ((shard, run(shard)) for shard in shards)
    if executor == "ray" and shards:
        return on_ray(run, shards, workers=workers, address=address)
    return _in_processes(shards, run, workers)


def shard_config(shard: Shard, limits: Limits, tools: Sequence[str]) -> dict[str, Any]:
    """Everything that decides what the runs of a shard come out as."""
    return {
        "agents": agents_config(shard.agents),
        "seeds": list(shard.seeds),
        "limits": msgspec.to_builtins(limits),
        "tools": list(tools),
        "config": dict(shard.config),
    }


def run_shard(shard: Shard, out: Path, limits: Limits, tools: tuple[str, ...]) -> dict[str, int]:
    """Run one shard in this process, write its file and then its manifest; gives the endings."""
    world, problems = shard.source()
    upstream = shard.upstream()
    driver = InlineDriver()
    endings: Counter[str] = Counter()
    path = out / f"{shard.name}.jsonl.zst"
    with (
        replacing(path) as raw,
        zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as packed,
        io.BufferedWriter(packed, 1 << 20) as stream,  # type: ignore[type-var]
    ):
        for problem in problems:
            for spec in shard.agents:
                for seed in shard.seeds:
                    trajectory = run_problem(
                        spec,
                        problem,
                        world,
                        driver=driver,
                        upstream=upstream,
                        limits=limits,
                        seed=seed,
                        tools=tools,
                    )
                    endings[str(trajectory.ending)] += 1
                    stream.write(to_json(trajectory) + b"\n")
    settings = shard_config(shard, limits, tools)
    manifest = Provenance(
        kind="bulk-shard",
        tool_version=__version__,
        config=msgspec.json.decode(msgspec.json.encode(settings)),
        config_digest=digest(settings),
        inputs={"catalogue": world.catalogue.digest, "world": world.digest},
        outputs={path.name: file_digest(path)},
        counts=dict(sorted(endings.items())),
    )
    write_manifest(manifest, out / "shards" / shard.name / MANIFEST)
    return dict(endings)


def _check(shards: Sequence[Shard]) -> None:
    names = Counter(shard.name for shard in shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ConfigError(f"two shards are called {twice[0]!r}", remedy="give each its own name")
    for shard in shards:
        for spec in shard.agents:
            if not spec.path:
                raise ConfigError(f"{spec.name} has no agent file", where=f"shard {shard.name}")


def _finished(out: Path, name: str) -> dict[str, int] | None:
    """Ending counts of a finished shard; None if it has to be run."""
    path = out / f"{name}.jsonl.zst"
    try:
        manifest = read_manifest(out / "shards" / name / MANIFEST)
    except InputError:
        return None
    if manifest is None or not path.is_file():
        return None
    if manifest.outputs.get(path.name) != file_digest(path):
        return None
    return dict(manifest.counts)


def _in_processes(
    shards: Sequence[Shard], run: Callable[[Shard], dict[str, int]], workers: int
) -> Iterator[Ended]:
    if not shards:
        return
    # spawn, not fork: the parent may hold threads, sockets and numba's thread pools
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(shards)), mp_context=context, initializer=hear_interrupts
    )
    try:
        with starting_workers():
            futures = {pool.submit(run, shard): shard for shard in shards}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise PalioError(
            "a worker process died, killed from outside or out of memory",
            remedy="run the same again: finished shards are kept; use fewer workers",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
