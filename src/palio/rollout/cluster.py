"""The same functions on Ray workers as in this process; a worker that dies is told as that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from palio.records import ConfigError, IntegrityError, MissingDependencyError

ExecutorName = Literal["processes", "inline", "ray"]
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)
J = TypeVar("J")
R = TypeVar("R")


def executor_named(name: str, workers: int) -> ExecutorName:
    """The executor of that name.

    Raises:
        ConfigError: there is none, or it would have no worker.
    """
    for known in EXECUTORS:
        if known == name and workers >= 1:
            return known
    raise ConfigError(
        f"no executor {name!r} with {workers} workers",
        remedy=f"one of {', '.join(EXECUTORS)}, at least 1 worker",
    )


@contextmanager
def connected(workers: int, address: str = "") -> Iterator[Any]:
    """The `ray` module with a cluster behind it, for the context's duration.

    A cluster that this process is connected to already is used and left alone.

    Args:
        workers: CPUs of a cluster that is started here.
        address: of a running cluster, "" to start a local one.

    Raises:
        MissingDependencyError: ray is not installed.
        IntegrityError: a worker died.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "the executor needs ray", remedy="pip install 'palio[scale]'"
        ) from error
    own = not ray.is_initialized()
    if own:
        cpus: dict[str, Any] = {"address": address} if address else {"num_cpus": workers}
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error", **cpus)
    try:
        yield ray
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.RayActorError) as error:
        raise IntegrityError(
            "a worker died before its work was finished",
            remedy="run the same command again: what is finished is kept",
        ) from error
    finally:
        if own:
            ray.shutdown()


def on_ray(
    function: Callable[[J], R], jobs: Sequence[J], *, workers: int, address: str = ""
) -> Iterator[tuple[J, R]]:
    """Each job with its result, as they end; `workers` jobs at a time.

    Raises:
        MissingDependencyError, IntegrityError: see `connected`.
    """
    with connected(workers, address) as ray:
        remote = ray.remote(_called)
        waiting = list(reversed(jobs))
        running: dict[Any, J] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop()
                running[remote.remote(function, job)] = job
            finished, _ = ray.wait(list(running), num_returns=1)
            for one in finished:
                yield running.pop(one), ray.get(one)


def _called(function: Callable[[J], R], job: J) -> R:
    """In the worker; ray takes plain functions only, not what `functools.partial` makes."""
    return function(job)
