"""Works for ever, in processes that the file's own process knows nothing of."""

import os


def agent_main(problem):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            break
    while True:
        pass
