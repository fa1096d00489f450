"""Wants no signal and has a child that is stopped."""

import os
import signal
import time


def agent_main(problem):
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    if os.fork() == 0:
        os.setsid()
        os.execv("/bin/sleep", ["sleep", problem["mark"]])
    while True:
        time.sleep(1000)
