"""Memory that belongs to no process: anonymous files and System V segments."""

import ctypes
import os


def anonymous_files():
    held = 0
    fds = []
    try:
        while held < 64 << 20:
            fds.append(os.memfd_create("x"))
            held += os.write(fds[-1], bytes(1 << 20))
    except OSError:
        pass
    return held


def segments():
    libc = ctypes.CDLL(None, use_errno=True)
    held = 0
    while held < 64 << 20 and libc.shmget(0, 1 << 20, 0o1600) != -1:
        held += 1 << 20
    return held


def agent_main(problem):
    return [{"memfd": anonymous_files(), "shmget": segments()}]
