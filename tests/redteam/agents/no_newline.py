"""One line of three megabytes."""

import sys


def agent_main(problem):
    sys.stdout.write("x" * 3_000_000)
    return []
