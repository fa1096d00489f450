"""Shards are made by any number of processes, here or on a cluster, and never twice.

What is left to do is read off the manifests: a shard is done when its manifest has the digests of
this configuration and of the input as it is now, and its files are there. Every executor runs the
same `make_shard`, so the bytes are the same wherever they are made.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from palio.corpus.shards.config import ShardConfig
from palio.corpus.shards.shard import (
    MANIFEST,
    ShardJob,
    ShardManifest,
    input_digest,
    make_shard,
    read_manifest,
    shard_name,
)
from palio.corpus.shards.spans import Span, spans_of
from palio.corpus.shards.storage import Folder, inputs_of
from palio.records import InputError, IntegrityError
from palio.rollout.cluster import ExecutorName, executor_named, on_ray
from palio.rollout.workers import hear_interrupts, starting_workers


class Plan(NamedTuple):
    """What there is to do.

    Attributes:
        done: manifests of shards that need not be made, by name.
        left: the jobs of the others, in the order of their inputs.
        names: all shards, in the order of their inputs.
        strays: shards of the folder that none of the inputs has.
    """

    done: dict[str, ShardManifest]
    left: tuple[ShardJob, ...]
    names: tuple[str, ...]
    strays: tuple[str, ...]


def plan(inputs: Sequence[str], config: ShardConfig, out: str) -> Plan:
    """Find out which shards are left.

    Args:
        inputs: files, folders, patterns and URLs; every file is a shard, and every part of a plain
            file of lines that is larger than `config.split`.
        config: its digest must be that of a finished shard.
        out: folder or URL.

    Raises:
        InputError: a name stands for no file, or cannot be read.
        ConfigError: the configuration makes no sense.
    """
    config = config.checked()
    files = inputs_of([str(name) for name in inputs])
    folder = Folder(out)
    folder.clean()
    held = set(folder.names())
    done: dict[str, ShardManifest] = {}
    left: list[ShardJob] = []
    every = [job for file in files for job in _jobs(file, config, folder.name)]
    for job in every:
        manifest = _finished(folder, job, held)
        if manifest is None:
            left.append(job)
        else:
            done[job.name] = manifest
    made = {name.removesuffix(MANIFEST) for name in held if name.endswith(MANIFEST)}
    names = tuple(job.name for job in every)
    return Plan(done, tuple(left), names, tuple(sorted(made - set(names))))


def _jobs(file: str, config: ShardConfig, out: str) -> list[ShardJob]:
    """The shards of one input in order."""
    spans = spans_of(file, config.split, config.max_bytes)
    if not spans:
        return [ShardJob(shard_name(file), file, out, config)]
    return [
        ShardJob(shard_name(file, part), file, out, config, span=span)
        for part, span in enumerate(spans)
    ]


def _finished(folder: Folder, job: ShardJob, held: set[str]) -> ShardManifest | None:
    """The manifest of a shard that is what it would be if it were made again; else None."""
    if job.name + MANIFEST not in held:
        return None
    try:
        manifest = read_manifest(folder, job.name)
    except InputError:
        return None  # of another version of palio: made again
    if manifest is None or manifest.config_digest != job.config.digest():
        return None
    span = job.span or Span(0, None, 1)
    if (manifest.input, manifest.first_byte, manifest.first_line) != (job.input, *span[::2]):
        return None
    if any(folder.size(each) != size for each, size in manifest.sizes.items()):
        return None
    return manifest if input_digest(job.input, job.span)[0] == manifest.input_sha256 else None


def run(
    todo: Plan,
    *,
    executor: ExecutorName = "processes",
    workers: int = 2,
    address: str = "",
    progress: Callable[[ShardManifest], None] | None = None,
) -> dict[str, ShardManifest]:
    """Make what is left of a plan.

    Args:
        todo: see `plan`.
        executor: "processes" of this machine, "inline" in this process, or "ray".
        workers: processes, or shards at a time on a cluster.
        address: of a running Ray cluster, "" to start a local one.
        progress: called with each manifest as soon as it is written.

    Returns:
        Name -> manifest of all shards, in the order of the inputs.

    Raises:
        InputError: an input cannot be read.
        IntegrityError: a worker died; what is finished stays, and the next run does the rest.
        MissingDependencyError: "ray" without the package.
    """
    executor = executor_named(executor, workers)
    made = dict(todo.done)
    ways: Mapping[ExecutorName, Callable[[], Iterator[ShardManifest]]] = {
        "inline": lambda: map(make_shard, todo.left),
        "processes": lambda: _in_processes(todo.left, workers),
        "ray": lambda: (
            made for _, made in on_ray(make_shard, todo.left, workers=workers, address=address)
        ),
    }
    for manifest in ways[executor]() if todo.left else ():
        made[manifest.name] = manifest
        if progress is not None:
            progress(manifest)
    return {name: made[name] for name in todo.names}


def _in_processes(jobs: Sequence[ShardJob], workers: int) -> Iterator[ShardManifest]:
    if len(jobs) == 1:  # nothing to share out
        yield from map(make_shard, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with starting_workers():
        pool = ProcessPoolExecutor(
            min(workers, len(jobs)), mp_context=context, initializer=hear_interrupts
        )
        waiting = list(reversed(jobs))
        running: set[Future[ShardManifest]] = {
            pool.submit(make_shard, waiting.pop()) for _ in waiting[:workers]
        }
    try:
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for one in finished:
                if waiting:
                    running.add(pool.submit(make_shard, waiting.pop()))
                yield one.result()
    except BrokenProcessPool as error:
        raise IntegrityError(
            "a worker process died before its shard was finished",
            remedy="run the same command again: finished shards are kept",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
