"""The guest's files keep the arena's agent contract, byte for byte where it is fixed."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from palio.sandbox.process import GUEST


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The guest's modules as an agent sees them."""
    loaded = {}
    for name in ("src", "src.agent"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("proxy_client", "agent_interface"):
        path = GUEST / "src" / "agent" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"src.agent.{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, f"src.agent.{name}", module)
        spec.loader.exec_module(module)
        loaded[name] = module
    return loaded


def test_call_ids(guest: dict[str, ModuleType]) -> None:
    make = guest["agent_interface"].generate_tool_call_id
    assert make("find_product", {"q": "hosport waist bag", "price": "180-505"}) == "0F6wQPb_"
    assert make("terminate", {"status": "success"}, length=4) == "NR0g"
    make("t", {"q": "\ud800"})


@pytest.mark.shared
def test_steps_equal_the_arena_s(guest: dict[str, ModuleType], shared_data: Path) -> None:
    interface = guest["agent_interface"]
    samples = json.loads((shared_data / "arena_samples" / "agent_return_value.json").read_text())
    for sample in samples:
        message, extra = sample["completion"]["message"], sample["extra_info"]
        step = interface.create_dialogue_step(
            message["think"],
            message["tool_call"],
            message.get("response"),
            extra["query"],
            extra["step"],
        )
        assert step["extra_info"].pop("timestamp") > extra.pop("timestamp")
        assert step == sample


class Scripted:
    """A raw socket server that answers each connection by the next list of byte strings."""

    def __init__(self, *connections: list[bytes]) -> None:
        self.seen: list[bytes] = []
        self._plan = connections
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for replies in self._plan:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(5)
                for reply in replies:
                    self.seen.append(connection.recv(65536))
                    connection.sendall(reply)

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


def ok(body: bytes, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), head, body)


def client(guest: dict[str, ModuleType], server: Scripted, **more: Any) -> Any:
    settings = {"retry_delay": 0.01, "rate_limit_retry_delay": 0.02, "timeout": 5, **more}
    return guest["proxy_client"].ProxyClient(server.url, **settings)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
FINAL = b"HTTP/1.1 502 Bad\r\nX-Should-Retry: false\r\nContent-Length: 0\r\n\r\n"
RATE = b"HTTP/1.1 429 Slow\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("connections", "answer", "requests"),
    [
        ([[ok(b"[1]"), ok(b"[1]")]], [1], 2),  # one connection for both requests
        ([[ok(b"[1]", b"Connection: close\r\n")], [ok(b"[1]")]], [1], 2),
        ([[ok(b"[1]")], [ok(b"[1]")]], [1], 2),  # closed while idle: once more on a fresh one
        ([[CHUNKED, ok(b"[1,2]")]], [1, 2], 2),
        ([[BUSY, ok(b"[1]"), ok(b"[1]")]], [1], 3),
        ([[RATE, RATE, ok(b"[1]"), ok(b"[1]")]], [1], 4),
        ([[FINAL, FINAL]], None, 2),
        ([[b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", FINAL]], None, 2),
        ([[ok(b"no json"), ok(b"")]], None, 2),
    ],
)
def test_the_client_over_a_raw_socket(
    guest: dict[str, ModuleType], connections: list[list[bytes]], answer: Any, requests: int
) -> None:
    server = Scripted(*connections)
    agent = client(guest, server)
    assert agent.get("/search/find_product", {"q": "a b&é", "page": 2, "x": None}) == answer
    assert agent.post("search/t", {"q": "é"}, {"X-Tool-Call-Id": "a\r\nb"}) == answer
    agent._drop()
    server.close()
    assert len(server.seen) == requests
    first, last = server.seen[0].decode(), server.seen[-1].decode()
    assert first.startswith("GET /search/find_product?q=a%20b%26%C3%A9&page=2 HTTP/1.1\r\n")
    assert "X-Tool-Call-Id: a  b\r\n" in last
    assert last.endswith('{"q":"é"}')


def test_nobody_there_is_none(guest: dict[str, ModuleType]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent = guest["proxy_client"].ProxyClient(f"http://127.0.0.1:{port}", retry_delay=0.01)
    assert agent.get("/x") is None


def test_the_url_comes_from_the_environment(
    guest: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = guest["proxy_client"].ProxyClient
    monkeypatch.delenv("SANDBOX_PROXY_URL", raising=False)
    assert make().proxy_url == "http://proxy:80"
    monkeypatch.setenv("SANDBOX_PROXY_URL", "http://127.0.0.1:9/run/x/")
    assert make().proxy_url == "http://127.0.0.1:9/run/x"
    with pytest.raises(ValueError, match="http://"):
        make("https://elsewhere")


def test_only_the_standard_library_is_imported() -> None:
    import ast

    for path in GUEST.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                own = {"src", *(file.stem for file in GUEST.glob("*.py"))}
                assert top in own | sys.stdlib_module_names, f"{path}: {name}"
