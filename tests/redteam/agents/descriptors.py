"""Descriptors without end: open ones, and ones that are under way in sockets."""

import array
import os
import socket


def opened():
    held = []
    try:
        while len(held) < 100_000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for fd in held:
        os.close(fd)
    return len(held)


def under_way():
    sent = 0
    pairs = []
    fd = os.open("/dev/null", os.O_RDONLY)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 100))]
    try:
        for _ in range(12):
            pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
            pairs[-1][0].setblocking(False)
            for _ in range(9):
                pairs[-1][0].sendmsg([b"x"], rights)
                sent += 100
    except OSError:
        pass
    return sent


def agent_main(problem):
    return [{"open": opened(), "under_way": under_way()}]
