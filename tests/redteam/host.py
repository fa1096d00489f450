"""What lies about on the host for an attacker: each thing marked, each socket listened at."""

from __future__ import annotations

import secrets
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from palio.records import Problem, to_json
from tests.broker.conftest import PROBLEM

ROOT = Path(__file__).parents[2]


class Host:
    """Secrets in a folder that anybody may read, and four listening sockets.

    Attributes:
        mark: stands in the command line of whatever an attacker leaves behind.
        canary: stands in the suite, in another miner's file and in this process's environment.
    """

    def __init__(self) -> None:
        self.mark = f"9{secrets.randbelow(10**9):09}"
        self.canary = "GROUND-TRUTH-" + secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix="palio-red-"))
        self.folder.chmod(0o777)
        self.suite = self.folder / "suite.jsonl"
        self.other = self.folder / "other_miner.py"
        hidden: Problem = PROBLEM
        self.suite.write_bytes(to_json(hidden) + self.canary.encode())
        self.other.write_text(f"SECRET = {self.canary!r}\n")
        for path in (self.suite, self.other):
            path.chmod(0o666)
        self._held = {path: path.read_bytes() for path in (self.suite, self.other)}
        self._sockets = self._listen()

    def _listen(self) -> dict[str, socket.socket]:
        made = {"tcp": socket.create_server(("127.0.0.1", 0))}
        self.port = made["tcp"].getsockname()[1]
        made["udp"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made["udp"].bind(("127.0.0.1", self.port))
        if socket.has_ipv6:
            made["tcp6"] = socket.create_server(("::1", self.port), family=socket.AF_INET6)
        for name, address in (
            ("abstract", "\0" + self.canary),
            ("unix", str(self.folder / "host.sock")),
        ):
            made[name] = socket.socket(socket.AF_UNIX)
            made[name].bind(address)
            made[name].listen()
        (self.folder / "host.sock").chmod(0o777)
        for each in made.values():
            each.setblocking(False)
        return made

    @property
    def told(self) -> dict[str, str]:
        """What the attacker is told, so that it need not guess."""
        return {
            "mark": self.mark,
            "port": str(self.port),
            "abstract": self.canary,
            "unix": str(self.folder / "host.sock"),
            "suite": str(self.suite),
            "other": str(self.other),
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no file of a sandbox's /proc may hold."""
        return self.canary, str(ROOT), str(self.folder), sys.prefix

    def knocks(self) -> list[str]:
        """Which of the sockets somebody came in on."""
        return [name for name, each in self._sockets.items() if _knocked(each)]

    def unchanged(self) -> bool:
        """Whether the folder holds what it held."""
        return {
            path: path.read_bytes() for path in self.folder.iterdir() if path.is_file()
        } == self._held

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _knocked(listening: socket.socket) -> bool:
    try:
        if listening.type == socket.SOCK_DGRAM:
            listening.recv(100)
        else:
            listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True
