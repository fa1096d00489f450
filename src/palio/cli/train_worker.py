"""What a launcher runs for a stage: one training process, or a launcher that is given a secret.

``python -m palio.cli.train_worker FOLDER`` trains the job in a stage's folder.
``python -m palio.cli.train_worker --key COMMAND ...`` reads the teacher's token from standard input
and becomes the command with the token in its environment: on no command line, in no file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

KEY = "PALIO_TEACHER_KEY"
"""The variable that `palio train` reads, too."""


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    if arguments[0] == "--key":
        os.environ[KEY] = sys.stdin.readline().strip()
        os.execvp(arguments[1], list(arguments[1:]))  # noqa: S606 - the recipe names it
    from palio.train.rl.processes import work

    work(Path(arguments[0]), os.environ.get(KEY, ""))


if __name__ == "__main__":
    main(sys.argv[1:])
