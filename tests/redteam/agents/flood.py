"""Writes to stdout and stderr without end."""

import os


def agent_main(problem):
    while True:
        os.write(1, b"x" * 100_000)
        os.write(2, b"line\n" * 10_000)
