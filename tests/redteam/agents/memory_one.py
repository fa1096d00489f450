"""One process takes all the memory that there is."""


def agent_main(problem):
    held = []
    while True:
        held.append(b"x" * (4_000_000 + len(held)))
