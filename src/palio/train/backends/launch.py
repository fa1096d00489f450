"""A stage that a recipe launches runs in processes of a launcher's, and how they ended is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

from palio.records import MissingDependencyError, PalioError
from palio.train.backends.job import SAVED, SftJob
from palio.train.settings import shipped

LOG = "launch.log"
_MODULES = {
    ("python",): (),
    ("accelerate", "launch"): ("-m", "accelerate.commands.launch"),
    ("torchrun",): ("-m", "torch.distributed.run"),
}
"""Launchers that are run by this very interpreter, wherever its scripts are."""


def command_of(launch: Sequence[str], folder: str) -> list[str]:
    """The command line that trains the job in `folder`.

    Args:
        launch: of a recipe; what follows an option ending in config_file may be the name of a file
            that ships.
        folder: of the stage.
    """
    named = [
        shipped(value) if before.endswith("config_file") else value
        for before, value in pairwise(("", *launch))
    ]
    for head, module in _MODULES.items():
        if tuple(named[: len(head)]) == head:
            named = [sys.executable, *module, *named[len(head) :]]
            break
    return [*named, "-m", "palio.train.backends.job", folder]


def launched(job: SftJob, launch: Sequence[str]) -> None:
    """Run the job in processes of a launcher's; what they say is in `launch.log`.

    Raises:
        MissingDependencyError: there is no such launcher.
        PalioError: a process failed, or none of them saved the weights.
    """
    path = job.place / LOG
    with path.open("ab") as log:
        try:
            command = command_of(launch, job.folder)
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode  # noqa: S603
        except FileNotFoundError as error:
            raise MissingDependencyError(
                f"there is no launcher {launch[0]!r}", remedy="install it, or change `launch`"
            ) from error
    if code or not (job.place / SAVED / "config.json").exists():
        raise PalioError(
            f"the training processes ended with status {code}",
            where=str(path),
            remedy="read the log; run the same again to go on from the last state",
        )
