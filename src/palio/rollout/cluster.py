"""The same functions on Ray workers as in this process; a worker that dies is told as that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from palio.records import ConfigError, IntegrityError, MissingDependencyError, PalioError

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
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PalioError):
            raise error.cause from None
        raise
    except _deaths(ray) as error:
        raise IntegrityError(
            f"a worker died before its work was finished: {_last_words(error)}",
            remedy="run the same command again: what is finished is kept",
        ) from error
    finally:
        if own:
            ray.shutdown()


def _deaths(ray: Any) -> tuple[type[Exception], ...]:
    """How ray says that a worker, or the machine that it ran on, is gone."""
    told = ray.exceptions
    return (
        told.WorkerCrashedError,
        told.RayActorError,
        told.OutOfMemoryError,
        told.NodeDiedError,
        told.LocalRayletDiedError,
    )


def check_gpus(ray: Any, workers: int, gpus: float) -> None:
    """Workers that a cluster has no room for would be waited for without an end and a word.

    Raises:
        ConfigError: it has fewer GPUs than its workers want.
    """
    held = ray.cluster_resources().get("GPU", 0.0)
    if held < workers * gpus:
        raise ConfigError(
            f"{workers} workers of {gpus:g} GPUs each want more than the cluster has: {held:g}",
            remedy="fewer --workers, or a share of a GPU for each, as in --gpus 0.25",
        )


def _last_words(error: Exception) -> str:
    """Why a worker ended: what it raised, or how its process ended, without the way there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


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
