"""`python_execute` gets a sandbox of its own for each call, as the run's agent has one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from palio import sandbox
from palio.records import FaultCode, Kind
from palio.sandbox.spec import (
    STRANGERS,
    Capability,
    Driver,
    SandboxLimits,
    SandboxOutcome,
    SandboxSpec,
)
from palio.world.execution import (
    MAX_EXCEPTION,
    MAX_OUTPUT,
    Execution,
    ExecutionUnavailableError,
)
from palio.world.tools import SEVEN_TOOLS, Toolbox
from palio.world.world import World

CODE, WEB = "python_execute", "web_search"
REQUIRED: tuple[Capability, ...] = tuple(name for name in STRANGERS if name != "ranked")
"""What a driver must enclose before a model's code is run in it."""
LIMITS = SandboxLimits(
    seconds=10.0,
    result_bytes=64_000,
    # The most bytes that MAX_OUTPUT characters take, and one character more: so that a cut is seen.
    output_bytes=4 * MAX_OUTPUT + 4,
    flood_bytes=16_000_000,
    memory_bytes=256 << 20,
    pids=32,
    open_files=128,
    file_bytes=16 << 20,
    tmp_bytes=32 << 20,
    shm_bytes=4 << 20,
    inodes=2_000,
)
"""Of one call: a tenth of an agent's time, half of its memory."""
_AGENT = str(Path(sandbox.__file__).parent / "guest_code.py")


class SandboxExecutor:
    """Runs code under a driver: one sandbox a call, no door, clock and chance fixed by the seed.

    Args:
        driver: must enclose `REQUIRED`; see `encloses`.
        seed: of the run; equal code prints equal output.
        remaining: seconds that the run has left; a call gets no more.
        limits: of each call.
    """

    def __init__(
        self,
        driver: Driver,
        seed: int = 0,
        remaining: Callable[[], float] | None = None,
        limits: SandboxLimits = LIMITS,
    ) -> None:
        self._driver = driver
        self._seed = seed
        self._remaining = remaining or (lambda: limits.seconds)
        self._limits = limits
        self._closed = threading.Event()

    def execute(self, code: str) -> Execution:
        """See `palio.world.execution.Executor`."""
        seconds = min(self._limits.seconds, max(0.1, self._remaining()))
        spec = SandboxSpec(
            agent=_AGENT,
            problem={"code": code},
            limits=_with_seconds(self._limits, seconds),
            seed=self._seed,
        )
        outcome = self._driver.run(spec, None, self._closed)
        if outcome.reason in ("launch_failed", "killed"):
            what = outcome.fault.what if outcome.fault else outcome.reason
            raise ExecutionUnavailableError(f"code could not be run: {what}")
        return _execution(outcome, seconds)

    def close(self) -> None:
        """End what is still running: the run that asked for it is over."""
        self._closed.set()


def encloses(driver: Driver) -> bool:
    """Whether a driver may run a model's code."""
    return not driver.capabilities.lacking(REQUIRED)


def offered_tools(
    tools: Sequence[str], driver: Driver, world: World, kind: Kind | None = None
) -> tuple[str, ...]:
    """The tools of a run that can be carried out, in order.

    Without `python_execute` where the driver would not enclose the code, without `web_search` where
    the world has no documents, and with it, after the catalogue's tools, for web problems.
    """
    names = list(tools)
    if kind == "web" and WEB not in names:
        names.append(WEB)
    here = {CODE: encloses(driver), WEB: world.web is not None}
    return tuple(name for name in names if here.get(name, True))


def withheld_tools(tools: Sequence[str]) -> tuple[str, ...]:
    """The tools of the shopping world that a run does not have, since it is not told of them.

    Every run can end: `terminate` is never withheld. A run that was told nothing has all.
    """
    told = {*tools, "terminate"}
    return tuple(name for name in SEVEN_TOOLS if name not in told) if tools else ()


@contextmanager
def run_tools(
    world: World,
    tools: Sequence[str],
    driver: Driver,
    seed: int,
    seconds: float = LIMITS.seconds,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Toolbox]:
    """The tools of one run, which lasts at most `seconds` from now.

    Code is run only where `tools` offers that, and none of it goes on when the block is left. A
    tool of the shopping world that `tools` leaves out is answered as one that there is not.
    """
    withheld = withheld_tools(tools)
    if CODE not in offered_tools(tools, driver, world):
        yield Toolbox(world, withheld=withheld)
        return
    deadline = clock() + seconds
    executor = SandboxExecutor(driver, seed, lambda: deadline - clock())
    try:
        yield Toolbox(world, executor, withheld)
    finally:
        executor.close()


def _with_seconds(limits: SandboxLimits, seconds: float) -> SandboxLimits:
    return msgspec.structs.replace(limits, seconds=seconds)


def _execution(outcome: SandboxOutcome, seconds: float) -> Execution:
    stdout, stderr = outcome.stdout[:MAX_OUTPUT], outcome.stderr[:MAX_OUTPUT]
    exception = _exception(outcome, seconds)
    return Execution(
        stdout=stdout,
        stderr=stderr,
        exception=exception[:MAX_EXCEPTION],
        truncated=len(stdout) < len(outcome.stdout)
        or len(stderr) < len(outcome.stderr)
        or len(exception) > MAX_EXCEPTION,
    )


def _exception(outcome: SandboxOutcome, seconds: float) -> str:
    """What ended the code: as it says itself, or as the host saw."""
    if outcome.reason == "timeout":
        return f"TimeoutError: stopped after {seconds:g} s"
    if outcome.reason == "oom":
        return "MemoryError: stopped, it used more memory than it may"
    if outcome.fault is not None:
        limited = outcome.fault.code == FaultCode.agent_output_limit
        return f"{'OSError' if limited else 'SystemExit'}: {outcome.fault.what}"
    claim = outcome.claim
    told = claim[0].get("exception", "") if claim and isinstance(claim[0], dict) else ""
    return told if isinstance(told, str) else ""
