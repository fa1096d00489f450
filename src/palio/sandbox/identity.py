"""A sandbox of root's runs as a user that nobody else is, so that limits count for it alone."""

from __future__ import annotations

import itertools
import os
import threading

FIRST = 1_900_000_000
"""Start of the range: above what systemd, containers and directories hand out, below 2**31."""
BLOCK = 2_000
"""Ids of one sandbox; containers map their root and their agent into it."""
SLOTS = 16_384
PROCESSES = 4
"""Ranges side by side, so that two validators on a machine do not share ids by accident."""

_COUNTER = itertools.count()
_LOCK = threading.Lock()


def fresh_user() -> int | None:
    """First id of a block that no other running sandbox of this process has; None if not root.

    16,384 sandboxes must have come and gone before a block is used again.
    """
    if os.geteuid() != 0:
        return None
    with _LOCK:
        slot = next(_COUNTER) % SLOTS
    return FIRST + (os.getpid() % PROCESSES * SLOTS + slot) * BLOCK


def dropped(setpriv: str, user: int | None) -> list[str]:
    """Start of a command line that becomes `user` for good and dies with the thread that starts it.

    As root RLIMIT_NPROC is not enforced, and root in a user namespace is root on the host's files.
    """
    argv = [setpriv, "--pdeathsig", "KILL"]
    if user is not None:
        ids = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
        argv += [*ids, "--inh-caps", "-all"]
    return [*argv, "--"]
