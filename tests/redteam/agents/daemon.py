"""Leaves daemons behind: forked twice, in sessions of their own, with nothing open."""

import os


def agent_main(problem):
    for _ in range(6):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 256)
                os.execve("/bin/sleep", ["sleep", problem["mark"]], {})
            os._exit(0)
        os.wait()
    return []
