"""No process of it is large, all of them together are."""

import os
import time


def agent_main(problem):
    for number in range(16):
        if os.fork() == 0:
            held = os.urandom(1000) * (12_000 + number)
            time.sleep(30)
            os._exit(len(held) % 2)
    time.sleep(30)
    return []
