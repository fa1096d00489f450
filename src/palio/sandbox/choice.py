"""A driver is chosen by name and by what it must enclose; one that lacks anything is refused."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from palio.broker.server import BrokerServer
from palio.records import ConfigError, MissingDependencyError, PalioError
from palio.sandbox.bwrap import BwrapDriver
from palio.sandbox.docker import DockerDriver
from palio.sandbox.inline import InlineDriver
from palio.sandbox.oci import OciDriver
from palio.sandbox.process import SubprocessDriver
from palio.sandbox.spec import (
    STRANGERS,
    Capability,
    Driver,
    SandboxLimits,
    SandboxSpec,
)

Maker = Callable[[BrokerServer | None], Driver]
UNSAFE = "unsafe-subprocess"
ENCLOSED: Mapping[str, Maker] = {
    "bwrap": BwrapDriver,
    "oci": OciDriver,
    "oci-runsc": partial(OciDriver, runtime="runsc"),
    "docker": DockerDriver,
}
"""Drivers fit for strangers' code, the preferred one first."""
UNENCLOSED: Mapping[str, Maker] = {UNSAFE: SubprocessDriver, "inline": lambda _: InlineDriver()}
"""Drivers for trusted agents; they run only when they are asked for by name."""
NAMES = ("auto", *ENCLOSED, *UNENCLOSED)
_NOTHING = b"def agent_main(problem):\n    return []\n"


def open_driver(
    name: str = "auto",
    *,
    required: Sequence[Capability] | None = None,
    server: BrokerServer | None = None,
) -> Driver:
    """A driver that was seen to work on this machine.

    Args:
        name: one of `NAMES`; "auto": the first enclosing one that works here.
        required: what it must enclose. None: everything, but nothing of a driver that is named
            and known to enclose nothing: whoever names it has decided, and its runs are not
            ranked.
        server: the broker of all its runs; None: one of its own.

    Raises:
        ConfigError: there is no such driver, or it does not enclose what is required.
        MissingDependencyError: it does not work here; the remedy says what to install.
    """
    if name == "auto":
        return _first(STRANGERS if required is None else required, server)
    makers = {**ENCLOSED, **UNENCLOSED}
    if name not in makers:
        raise ConfigError(f"no driver is called {name!r}", remedy=f"choose {', '.join(NAMES)}")
    if required is None:
        required = STRANGERS if name in ENCLOSED else ()
    driver = makers[name](server)
    lacking = driver.capabilities.lacking(required)
    if lacking:
        close_driver(driver)
        raise ConfigError(
            f"the driver {name} does not enclose: {', '.join(lacking)}",
            remedy=f"choose {' or '.join(ENCLOSED)}; `palio doctor` says which of them works here",
        )
    if name in ENCLOSED:
        trouble = trial(driver)
        if trouble:
            close_driver(driver)
            raise MissingDependencyError(
                f"the driver {name} does not work here: {trouble}", remedy="see `palio doctor`"
            )
    return driver


def _first(required: Sequence[Capability], server: BrokerServer | None) -> Driver:
    troubles = []
    for name in ENCLOSED:
        try:
            return open_driver(name, required=required, server=server)
        except PalioError as error:
            troubles.append(f"{name}: {error}")
    raise MissingDependencyError(
        f"no driver encloses what is required here ({'; '.join(troubles)})",
        remedy=f"apt-get install bubblewrap, or name {UNSAFE} to run only agents that you trust",
    )


def trial(driver: Driver) -> str:
    """Run an agent that does nothing; what went wrong, "" when nothing did."""
    with tempfile.TemporaryDirectory(prefix="palio-trial-") as folder:
        path = Path(folder) / "agent.py"
        path.write_bytes(_NOTHING)
        spec = SandboxSpec(agent=str(path), problem={}, limits=SandboxLimits(seconds=20.0))
        outcome = driver.run(spec, None)
    if outcome.claim == []:
        return ""
    return outcome.fault.what if outcome.fault is not None else outcome.reason


def close_driver(driver: Driver) -> None:
    """Stop what a driver started."""
    if isinstance(driver, AbstractContextManager):
        driver.__exit__(None, None, None)


def opened(driver: Driver) -> AbstractContextManager[Driver]:
    """The driver as a context that closes it."""
    return driver if isinstance(driver, AbstractContextManager) else nullcontext(driver)


__all__ = [
    "ENCLOSED",
    "NAMES",
    "UNENCLOSED",
    "UNSAFE",
    "close_driver",
    "open_driver",
    "opened",
    "trial",
]
