"""Knocks at sockets of the host: container engines, buses, one with a path, one without."""

import os
import socket
import stat

PLACES = """
/var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock
/run/podman/podman.sock /run/crio/crio.sock /run/dbus/system_bus_socket
/run/systemd/private /tmp/.X11-unix/X0 /door/control /run/user/0/bus
""".split()


def reached(address):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            with socket.socket(socket.AF_UNIX, kind) as made:
                made.settimeout(2)
                made.connect(address)
            return True
        except OSError:
            pass
    return False


def lying_about():
    found = []
    for folder, names, files in os.walk("/"):
        if folder == "/":
            names[:] = [name for name in names if name not in ("proc", "sys", "usr")]
        for name in files:
            try:
                if stat.S_ISSOCK(os.lstat(f"{folder}/{name}").st_mode):
                    found.append(f"{folder}/{name}")
            except OSError:
                pass
        if len(found) > 1000:
            break
    return found


def agent_main(problem):
    places = ["\0" + problem["abstract"], problem["unix"]]
    if "only" not in problem:
        places += [*PLACES, *lying_about()]
    return [{"reached": [place for place in places if reached(place)]}]
