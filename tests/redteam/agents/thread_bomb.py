"""Threads without end."""

import threading
import time


def agent_main(problem):
    made = 0
    try:
        while True:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            made += 1
    except RuntimeError:
        return [{"processes": made}]
