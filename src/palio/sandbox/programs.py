"""Which system programs a sandbox is made with, and what to install where one is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from palio.records import MissingDependencyError

_FOLDERS = "/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin:/usr/local/sbin"
_PACKAGES = {
    "bwrap": "bubblewrap",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "runc": "runc",
    "runsc": "runsc",
    "docker": "docker.io",
    "python3": "python3",
}
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
OLDEST = (3, 9)
"""Oldest Python that the guest's files run on."""


class SystemPython(NamedTuple):
    """An interpreter that a sandbox can be given: it and its library lie below /usr.

    One below somebody's home cannot: the user that the sandbox runs as may not even look there.
    """

    path: str
    version: tuple[int, int]
    prefix: str


def program(name: str) -> str:
    """Absolute path of a system program.

    Raises:
        MissingDependencyError: it is not installed; the remedy names its package.
    """
    found = shutil.which(name, path=_FOLDERS) or shutil.which(name)
    if found is None:
        raise MissingDependencyError(f"the program {name} is not installed", remedy=install(name))
    return found


def install(name: str) -> str:
    """How a Debian or Ubuntu machine gets a program."""
    return f"apt-get install {_PACKAGES[name]}"


@cache
def system_python() -> SystemPython:
    """The newest enough interpreter below /usr.

    Raises:
        MissingDependencyError: there is none.
    """
    for path in _PYTHONS:
        real = os.path.realpath(path)
        if not real.startswith("/usr/") or not os.access(real, os.X_OK):
            continue
        version = _version(path)
        if version >= OLDEST:
            return SystemPython(path, version, str(Path(path).parents[1]))
    raise MissingDependencyError(
        f"no Python of {OLDEST[0]}.{OLDEST[1]} or newer lies below /usr: sandboxes need one",
        remedy=install("python3"),
    )


def _version(path: str) -> tuple[int, int]:
    asked = "import json, sys; print('%d %d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed path
            [path, "-S", "-s", "-B", "-c", asked],
            env={},
            capture_output=True,
            check=True,
            timeout=30,
        )
        major, minor = answer.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return (0, 0)
