"""Stands in for the docker command: `run` by bubblewrap with the same options, `rm`, `ps`.

Installed as an executable beside a folder in which it notes calls and running containers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

STATE = Path(sys.argv[0]).parent / "docker-state"
FLAGS = {"--rm", "--read-only"}


def main() -> None:
    STATE.mkdir(exist_ok=True)
    words = sys.argv[1:]
    with (STATE / "calls").open("a") as file:
        file.write(json.dumps(words) + "\n")
    if words[0] == "run":
        run(words[1:])
    elif words[0] == "rm":
        for name in words[2:]:
            note = STATE / f"{name}.json"
            if note.exists():
                os.kill(json.loads(note.read_text())["pid"], signal.SIGKILL)
                note.unlink()
    elif words[0] == "ps":
        for note in STATE.glob("*.json"):
            print(note.stem, json.loads(note.read_text())["host"])


def run(words: list[str]) -> None:
    options: dict[str, list[str]] = {}
    while words[0].startswith("--"):
        word = words.pop(0)
        name, given, value = word.partition("=")
        if word not in FLAGS:
            options.setdefault(name, []).append(value if given else words.pop(0))
    _image, *command = words
    host = options["--label"][0].partition("=")[2]
    note = {"pid": os.getpid(), "host": host}
    (STATE / f"{options['--name'][0]}.json").write_text(json.dumps(note))
    user, _, group = options["--user"][0].partition(":")
    bwrap = ["bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    bwrap += ["--as-pid-1", "--uid", user, "--gid", group, "--hostname", options["--hostname"][0]]
    bwrap += ["--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"]
    bwrap += ["--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"]
    bwrap += ["--proc", "/proc", "--dev", "/dev"]
    for mount in options["--tmpfs"]:
        where, _, how = mount.partition(":")
        size = how.partition("size=")[2].partition(",")[0]
        bwrap += ["--size", size, "--tmpfs", where]
    for volume in options["--volume"]:
        source, inside, _ = volume.split(":")
        bwrap += ["--ro-bind", source, inside]
    for pair in options["--env"]:
        bwrap += ["--setenv", *pair.split("=", 1)]
    bwrap += ["--remount-ro", "/", "--chdir", options["--workdir"][0]]
    python = f"/usr/bin/{options['--entrypoint'][0]}"
    os.execvpe("bwrap", [*bwrap, python, *command], {"PATH": "/usr/bin:/bin"})


main()
