"""Ctrl-C ends worker processes without a word, however far they have come in starting.

A terminal sends SIGINT to the whole process group, so each worker would print a traceback of its
own, most often from the middle of an import.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting_workers() -> Iterator[None]:
    """Processes started inside hold SIGINT back until `hear_interrupts` runs in them."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def hear_interrupts() -> None:
    """Initialiser of a worker: from here on SIGINT, one held back included, just ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
