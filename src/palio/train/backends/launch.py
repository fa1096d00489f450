"""A stage that a recipe launches runs in processes of a launcher's, and how they ended is told."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from palio.records import MissingDependencyError, PalioError
from palio.train.backends.job import SAVED
from palio.train.backends.starter import starting
from palio.train.settings import shipped

LOG = "launch.log"
SFT = "palio.train.backends.job"
"""The module that trains an SFT, rejection or teacher stage."""
_STARTER = "palio.cli.train_worker"
"""The module that takes a secret from standard input and becomes a launcher."""
_MODULES = {
    ("python",): (),
    ("accelerate", "launch"): ("-m", "accelerate.commands.launch"),
    ("torchrun",): ("-m", "torch.distributed.run"),
}
"""Launchers that are run by this very interpreter, wherever its scripts are."""


class Job(Protocol):
    """What is to be trained, written down in a stage's folder."""

    @property
    def place(self) -> Path:
        """The stage's folder."""

    @property
    def folder(self) -> str:
        """The same, as a launcher's processes are told."""


def command_of(launch: Sequence[str], folder: str, module: str = SFT) -> list[str]:
    """The command line that trains the job in `folder`.

    Args:
        launch: of a recipe; what follows an option ending in config_file may be the name of a file
            that ships.
        folder: of the stage.
        module: that the processes run.
    """
    named = [value for _, value in options_of(launch)]
    for head, instead in _MODULES.items():
        if tuple(named[: len(head)]) == head:
            named = [sys.executable, *instead, *named[len(head) :]]
            break
    return [*named, "-m", module, folder]


def options_of(launch: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(the word before, the word itself) of a recipe's `launch`, files that ship by their path."""
    for before, value in pairwise(("", *launch)):
        yield before, shipped(value) if before.endswith("config_file") else value


def check_launcher(launch: Sequence[str]) -> None:
    """The program that starts the training processes is here.

    Raises:
        MissingDependencyError: there is no such launcher.
    """
    if shutil.which(command_of(launch, "")[0]) is None:
        raise _no_launcher(launch)


def _no_launcher(launch: Sequence[str]) -> MissingDependencyError:
    return MissingDependencyError(
        f"there is no launcher {launch[0]!r}", remedy="install it, or change `launch`"
    )


def launched(job: Job, launch: Sequence[str], *, module: str = SFT, key: str = "") -> None:
    """Run the job in processes of a launcher's; what they say is in `launch.log`.

    They end with this process, whatever ends it (`starter`).

    Args:
        job: written down already.
        launch: of the recipe.
        module: that the processes run.
        key: bearer token of a teacher, which they find in their environment.

    Raises:
        MissingDependencyError: there is no such launcher.
        PalioError: a process failed, or none of them saved the weights.
    """
    path = job.place / LOG
    command = command_of(launch, job.folder, module)
    if key:
        command = [sys.executable, "-m", _STARTER, "--key", *command]
    with path.open("ab") as log, starting(job.place):
        try:
            code = subprocess.run(  # noqa: S603
                command, input=key.encode(), stdout=log, stderr=log, check=False
            ).returncode
        except FileNotFoundError as error:
            raise _no_launcher(launch) from error
    if code or not (job.place / SAVED / "config.json").exists():
        raise PalioError(
            f"the training processes ended with status {code}",
            where=str(path),
            remedy="read the log; run the same again to go on from the last state",
        )
