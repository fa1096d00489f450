"""Files, folders and links that hold nothing, without end."""

import os
import time


def agent_main(problem):
    made = 0
    try:
        for number in range(20_000):
            path = f"/tmp/{number}"
            open(path, "w").close()
            os.mkdir(path + "d")
            os.symlink("/", path + "s")
            os.link(path, path + "h")
            made += 4
    except OSError:
        return [{"made": made}]
    time.sleep(5)
    return [{"made": made}]
