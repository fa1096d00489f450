"""The host's end of a sandbox's control socket: greeting and listener up, task down, report up.

What comes before the task is written by our guest, what comes after it by the agent.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Self

_DESCRIPTORS = 4
_BACKLOG = 1


class Control:
    """One control socket, not open to the guest yet, or open.

    Attributes:
        guest: the guest's end, to be inherited; None where the guest connects to a path.
    """

    def __init__(
        self, host: socket.socket, guest: socket.socket | None = None, peers: range = range(0)
    ) -> None:
        self._host = host
        self._peers = peers
        self._waiting = guest is None
        self.guest = guest

    @classmethod
    def inherited(cls) -> Self:
        """A pair: one end here, the other for the sandbox to inherit."""
        return cls(*socket.socketpair())

    @classmethod
    def at(cls, path: Path, peers: range) -> Self:
        """A socket that a container finds at a path; only the first who connects is heard.

        Args:
            path: where it is, on the host.
            peers: user ids that the guest can have; anybody else is hung up on.
        """
        return cls(listening_at(path, _BACKLOG), peers=peers)

    def fileno(self) -> int:
        """What to wait on; another one after `greeted` has accepted."""
        return self._host.fileno()

    def started(self) -> None:
        """The sandbox has inherited its end."""
        if self.guest is not None:
            self.guest.close()
            self.guest = None

    def greeted(self) -> tuple[bool, socket.socket | None]:
        """(whether the guest has greeted, the listening socket that came along).

        Raises:
            OSError: the guest hung up without a word.
        """
        if self._waiting:
            connection, _ = self._host.accept()
            if _user_of(connection) not in self._peers:
                connection.close()
                raise OSError("somebody else connected to its control socket")
            self._host.close()
            self._host = connection
            self._waiting = False
            return False, None
        size = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self._host.recvmsg(1, size)
        listeners = [listener for listener in map(_listener, _received(ancillary)) if listener]
        for surplus in listeners[1:]:
            surplus.close()
        if not data:
            for listener in listeners:
                listener.close()
            raise OSError("it hung up before it greeted")
        return True, listeners[0] if listeners else None

    def give(self, task: bytes, seconds: float) -> None:
        """Hand over the task; from now on the agent runs.

        Raises:
            OSError: the guest did not take it in time.
        """
        self._host.settimeout(seconds)
        self._host.sendall(task)
        self._host.shutdown(socket.SHUT_WR)
        self._host.setblocking(False)

    def close(self) -> None:
        """Close both ends."""
        self._host.close()
        self.started()


def _user_of(connection: socket.socket) -> int:
    """User id of the process at the other end, as the kernel saw it connect."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(user)


def listening_at(path: Path, backlog: int) -> socket.socket:
    """A listening Unix socket that any user who can see the path may connect to."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(str(path))
        path.chmod(0o666)
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    numbers = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return list(numbers)


def _listener(fd: int) -> socket.socket | None:
    """The descriptor as a listening TCP socket, closed and None when it is anything else."""
    with contextlib.suppress(OSError):
        made = socket.socket(fileno=fd)
        listens = made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if made.family == socket.AF_INET and listens:
            return made
        made.close()
        return None
    with contextlib.suppress(OSError):
        os.close(fd)
    return None
