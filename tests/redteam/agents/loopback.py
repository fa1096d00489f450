"""Tries a port of the host's own loopback, by TCP and by UDP, under all its names."""

import socket

HOSTS = ("127.0.0.1", "127.0.0.2", "127.1.2.3", "0.0.0.0", "::1", "::", "localhost", "proxy")


def by_tcp(host, port):
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def by_udp(host, port):
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
        ) as made:
            made.sendto(b"knock", (host, port))
    except OSError:
        pass


def agent_main(problem):
    port = int(problem["port"])
    for host in HOSTS:
        by_udp(host, port)
    return [{"reached": [host for host in HOSTS if by_tcp(host, port)]}]
