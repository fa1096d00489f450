"""Tries all that lies beyond the host: metadata, names, raw packets, the hypervisor, the kernel.

Runs only where the sandbox has a network of its own.
"""

import os
import socket

PLACES = [
    ("169.254.169.254", 80),
    ("169.254.170.2", 80),
    ("fd00:ec2::254", 80),
    ("fe80::1", 80),
    ("1.1.1.1", 443),
    ("8.8.8.8", 53),
    ("10.0.0.1", 80),
    ("192.168.0.1", 80),
    ("172.17.0.1", 2375),
    ("2606:4700:4700::1111", 443),
]
QUERY = bytes.fromhex(
    "1234010000010000000000000765 78616d706c6503636f6d0000010001".replace(" ", "")
)


def connected(place):
    try:
        with socket.create_connection(place, timeout=1):
            return True
    except OSError:
        return False


def resolved(place):
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.settimeout(0.2)
            made.sendto(QUERY, (place[0], 53))
            return True
    except OSError:
        return False


def families():
    got = []
    for number in range(1, 46):
        if number in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            kinds = [(socket.SOCK_RAW, 1), (socket.SOCK_RAW, 58), (socket.SOCK_RAW, 255)]
        else:
            kinds = [(socket.SOCK_STREAM, 0), (socket.SOCK_RAW, 0), (socket.SOCK_DGRAM, 0)]
        if number == socket.AF_UNIX:
            continue
        for kind, protocol in kinds:
            try:
                socket.socket(number, kind, protocol).close()
                got.append(number)
            except OSError:
                pass
    return got


def interfaces():
    try:
        with open("/proc/net/dev") as file:
            return [line.split(":")[0].strip() for line in file if ":" in line]
    except OSError:
        return []


def agent_main(problem):
    try:
        name = [each[4][0] for each in socket.getaddrinfo("example.com", 80)]
    except OSError:
        name = []
    return [
        {
            "connected": [place[0] for place in PLACES if connected(place)],
            "asked": [place[0] for place in PLACES if resolved(place)],
            "name": name,
            "families": families(),
            "interfaces": interfaces(),
            "devices": [path for path in ("/dev/vsock", "/dev/net/tun") if os.path.exists(path)],
        }
    ]
