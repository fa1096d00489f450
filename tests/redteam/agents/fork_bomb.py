"""Every process forks for as long as it can; then it stays."""

import os
import time


def agent_main(problem):
    first = os.getpid()
    while True:
        try:
            os.fork()
        except OSError:
            break
    if os.getpid() != first:
        os.execv("/bin/sleep", ["sleep", problem["mark"]])
    time.sleep(0.3)
    return [{"processes": sum(name.isdigit() for name in os.listdir("/proc"))}]
