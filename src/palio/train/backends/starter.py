"""Training processes end when the command that started them is gone, even by SIGKILL.

A launcher's processes would go on otherwise, and the same command again would train beside them in
the same folder. Who starts them holds a lock; each of them looks whether it is still held.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".launched"
_LOOK_S = 1.0
"""How often; a launcher needs several seconds to start processes anew."""


@contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Held while the processes of a stage run; whatever becomes of this one, the lock goes too."""
    path = folder / LOCK
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def alone(folder: Path) -> bool:
    """Whether nobody holds the lock: there is no command that waits for this process."""
    try:
        with (folder / LOCK).open("rb") as looked:
            fcntl.flock(looked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def end_with_starter(folder: Path) -> None:
    """From here on this process ends soon after its starter; one started by hand just goes on."""
    if not alone(folder):
        threading.Thread(target=_watch, args=(folder,), name="palio-starter", daemon=True).start()


def _watch(folder: Path) -> None:
    never = threading.Event()
    while not alone(folder):
        never.wait(_LOOK_S)
    os._exit(1)  # not sys.exit: the main thread may wait for a process that is gone, too
