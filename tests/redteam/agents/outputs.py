"""Leaves outputs that are no files: links to the host's, pipes that hold up readers, devices."""

import os
import socket
import subprocess


def tried(make, *arguments):
    try:
        make(*arguments)
        return True
    except OSError:
        return False


def agent_main(problem):
    os.chdir("/tmp")
    bound = socket.socket(socket.AF_UNIX)
    made = {
        "link": tried(os.symlink, problem["suite"], "link"),
        "link to a device": tried(os.symlink, "/dev/zero", "zero"),
        "link to itself": tried(os.symlink, "loop", "loop"),
        "link upwards": tried(os.symlink, "../../../../../etc/shadow", "up"),
        "pipe": tried(os.mkfifo, "pipe"),
        "socket": tried(bound.bind, "socket"),
        "folder": tried(os.mkdir, "folder"),
        "long": tried(lambda: os.truncate(os.open("long", os.O_CREAT | os.O_RDWR), 30 << 20)),
        "odd name": tried(lambda: open("a\n\x1b[2J\udcff", "w").close()),
        "honest": tried(lambda: open("honest", "w").write("honest")),
    }
    refused = {
        "hard link to the host's": tried(os.link, problem["suite"], "hard"),
        "hard link to the interpreter": tried(os.link, "/usr/bin/python3", "python"),
        "hard link to the agent": tried(os.link, "/agent/agent.py", "agent"),
        "device": tried(os.mknod, "device", 0o20666, os.makedev(1, 5)),
        "disk": tried(os.mknod, "disk", 0o60666, os.makedev(8, 0)),
    }
    subprocess.call(["/bin/sleep", problem["mark"]])  # the host looks now, and then ends it
    return [{"made": made, "refused": refused}]
