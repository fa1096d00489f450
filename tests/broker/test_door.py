"""A run with a socket of its own: the socket is the identity, and a flood on it stays its own."""

from __future__ import annotations

import array
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from palio.broker import door, service
from palio.broker.hangup import seconds_left
from palio.broker.limits import Limits
from palio.broker.routes import tool_reply
from palio.broker.server import BrokerServer
from palio.broker.session import Session
from tests.broker.conftest import Clock, Replies, completion
from tests.broker.test_server import ASK, Client

Open = Callable[..., Session]
MANY = Limits(calls=1_000_000, inferences=1000, bytes=10**10, seconds=1000)


def listening() -> tuple[socket.socket, str]:
    found = socket.create_server(("127.0.0.1", 0), backlog=512)
    return found, f"http://127.0.0.1:{found.getsockname()[1]}"


def test_the_socket_is_the_identity(server: BrokerServer, open_session: Open) -> None:
    sessions = [open_session(Replies(completion(f"run {n}"))) for n in range(3)]
    sockets = [listening() for _ in sessions]
    handles = [
        server.serve(session, sock) for session, (sock, _) in zip(sessions, sockets, strict=True)
    ]
    for n, (_, url) in enumerate(sockets):
        with Client(url) as client:
            for path in ("/v1/chat/completions", "/inference/chat/completions"):
                status, body, _ = client("POST", path, {"messages": ASK})
                assert (status, body["choices"][0]["message"]["content"]) == (200, f"run {n}")
            assert client("GET", "/search/find_product?q=red%20mug")[1][0]["product_id"] == "1"
            assert len(client("GET", "/tools")[1]["tools"]) == 7
            assert client("GET", "/status")[1]["left"]["inferences"] == Limits().inferences - 2
            assert client("GET", "/nothing")[0] == 404
    for handle, session in zip(handles, sessions, strict=True):
        handle.close()
        assert len(session.close().events) == 3


def test_nothing_is_carried_out_after_close(server: BrokerServer, open_session: Open) -> None:
    session = open_session()
    sock, url = listening()
    with server.serve(session, sock), Client(url) as client:
        assert client("GET", "/tools")[0] == 200
        handle_open = client
    with pytest.raises((ConnectionError, OSError)):
        handle_open("GET", "/search/find_product?q=mug")
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=2)
    assert session.close().events == ()


def test_who_answers_a_run_hears_how_long_it_lasts(
    server: BrokerServer, open_session: Open, clock: Clock
) -> None:
    left: list[float | None] = []

    class Asked:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            left.append(seconds_left())
            return completion("x")

    session = open_session(Asked(), Limits(seconds=10))
    sock, url = listening()
    with server.serve(session, sock), Client(url) as client:
        for _ in range(2):
            assert client("POST", "/v1/chat/completions", {"messages": ASK})[0] == 200
            clock.now += 4
    session.complete({"messages": ASK})
    assert left == [10, 6, 2]


def test_close_does_not_wait_for_a_slow_model(
    server: BrokerServer, open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, answered = threading.Event(), threading.Event()
    monkeypatch.setattr(door, "CLOSE_S", 60.0)  # it gives nothing up: what it waits for has ended

    class Slow:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            gate.wait(20)
            answered.set()
            return completion("late")

    session = open_session(Slow())
    sock, url = listening()
    handle = server.serve(session, sock)
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client, "POST", "/v1/chat/completions", {"messages": ASK})
        deadline = time.monotonic() + 5
        while not session._pending and time.monotonic() < deadline:
            time.sleep(0.005)
        handle.close()
        assert not answered.is_set()
        assert session.close().inferences[0].finish_reason == "pending"
        gate.set()
        with pytest.raises((ConnectionError, OSError)):
            waiting.result()


def test_a_socket_that_does_not_listen_is_refused(server: BrokerServer, open_session: Open) -> None:
    with socket.socket() as idle, pytest.raises(OSError, match="does not listen"):
        server.serve(open_session(), idle)


def test_a_stopped_broker_closes_its_doors(open_session: Open) -> None:
    own = BrokerServer().start()
    sock, url = listening()
    handle = own.serve(open_session(), sock)
    with Client(url) as client:
        assert client("GET", "/tools")[0] == 200
    own.stop()
    handle.close()
    assert sock.fileno() == -1


GUEST = """
import array, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
door = socket.create_server(("127.0.0.1", 0))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [door.fileno()]))]
channel.sendmsg([b"x"], rights)
port = door.getsockname()[1]
door.close()
import http.client
http = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
http.request("GET", "/search/find_product?q=red%20mug")
print(http.getresponse().read().decode())
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=1)
    print("the host can be reached")
except OSError:
    print("no other way out")
"""


def test_a_socket_of_another_network_namespace(server: BrokerServer, open_session: Open) -> None:
    unshare = [shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--net", "--"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unprivileged network namespaces")
    bring_up = (
        "import fcntl,socket,struct;s=socket.socket();"
        "fcntl.ioctl(s,0x8914,struct.pack('16sh14x',b'lo',1));"
    )
    ours, theirs = socket.socketpair()
    session = open_session()
    command = [sys.executable, "-c", bring_up + GUEST, str(theirs.fileno())]
    with ours, theirs:
        guest = subprocess.Popen(
            [*unshare, *command, server.url.rsplit(":", 1)[1]],
            pass_fds=(theirs.fileno(),),
            stdout=subprocess.PIPE,
            text=True,
        )
        _, rights, _, _ = ours.recvmsg(1, socket.CMSG_LEN(4))
        fds = array.array("i")
        fds.frombytes(rights[0][2])
        with server.serve(session, socket.socket(fileno=fds[0])):
            said, _ = guest.communicate(timeout=20)
    rows, reach = said.splitlines()
    assert json.loads(rows)[0]["product_id"] == "1"
    assert reach == "no other way out"
    assert [event.tool for event in session.close().dispatches] == ["find_product"]


def timed_calls(url: str, count: int) -> list[float]:
    times = []
    with Client(url) as client:
        for _ in range(count):
            started = time.perf_counter()
            assert client("GET", "/search/find_product?q=mug")[0] == 200
            times.append(time.perf_counter() - started)
    return times


class Turns:
    """Counts what is carried out for a run in one turn of the broker's loop.

    Attributes:
        most: tool calls between two beats of the loop, each of which ends one turn and begins the
            next: twice what one turn may have.
        calls: all of them.
    """

    def __init__(self, server: BrokerServer, session: Session) -> None:
        assert server._loop is not None
        self._loop, self._session = server._loop, session
        self.most = self.calls = self._before = 0
        self._over = False

    def reply(self, session: Session, *call: Any) -> Any:
        self.calls += session is self._session
        return tool_reply(session, *call)

    def _beat(self) -> None:
        self.most, self._before = max(self.most, self.calls - self._before), self.calls
        if not self._over:
            self._loop.call_soon(self._beat)

    @contextmanager
    def counted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service, "tool_reply", self.reply)
            self._loop.call_soon_threadsafe(self._beat)
            yield
            self._over = True


FLOOD = """
import socket, sys, threading, time
port, kind = int(sys.argv[1]), sys.argv[2]
def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=30)
answered = threading.Event()
def calls(n):
    with connect() as one:
        while True:
            one.sendall(b"GET /search/find_product?q=mug HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * n)
            got = 0
            while got < n:
                got += one.recv(1 << 16).count(b"HTTP/1.1 ")
                answered.set()
held = []
if kind == "parallel":
    threads = [threading.Thread(target=calls, args=(50,), daemon=True) for _ in range(200)]
    [t.start() for t in threads]
    answered.wait()
    print("on", flush=True)
else:
    for n in range(200):
        one = connect()
        if kind == "head":
            one.sendall(b"GET /tools HTT")
        if kind == "body":
            one.sendall(b"POST /search/find_product HTTP/1.1\\r\\nHost: x\\r\\n")
            one.sendall(b"Content-Length: 8000000\\r\\n\\r\\n{")
        held.append(one)
    print("on", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["parallel", "head", "body", "silent"])
def test_an_attack_on_one_door_leaves_the_others_alone(
    server: BrokerServer, open_session: Open, kind: str
) -> None:
    attacked, neighbour = open_session(limits=MANY), open_session(limits=MANY)
    (sock, url), (quiet, quiet_url) = listening(), listening()
    with server.serve(attacked, sock), server.serve(neighbour, quiet):
        command = [sys.executable, "-c", FLOOD, url.rsplit(":", 1)[1], kind]
        turns = Turns(server, attacked)
        with (
            turns.counted(),
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as attacker,
        ):
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "on\n"
            timed_calls(quiet_url, 100)
            attacker.kill()
        assert turns.most <= 2, "one call a turn, however many are there to be carried out"
        assert bool(turns.calls) == (kind == "parallel")
        assert len(neighbour.close().dispatches) == 100
    assert len(server._doors) == 0


def test_connections_of_a_door_are_capped(server: BrokerServer, open_session: Open) -> None:
    sock, url = listening()
    with server.serve(open_session(), sock):
        port = int(url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(door.CONNECTIONS)]
        late = socket.create_connection(("127.0.0.1", port), timeout=0.5)
        late.sendall(b"GET /tools HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(TimeoutError):
            late.recv(1)
        held.pop().close()
        late.settimeout(5)
        assert late.recv(12) == b"HTTP/1.1 200"
        for one in (*held, late):
            one.close()


def test_scarce_descriptors_leave_each_run_its_own(
    server: BrokerServer, open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._descriptors, "plenty", door.SURE)
    (greedy, url), (modest, modest_url) = listening(), listening()
    with server.serve(open_session(), greedy), server.serve(open_session(), modest):
        port = int(url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        deadline = time.monotonic() + 5
        while server._descriptors.open < door.SURE and time.monotonic() < deadline:
            time.sleep(0.005)
        with Client(modest_url) as client:
            assert client("GET", "/tools")[0] == 200
            assert server._descriptors.open == door.SURE + 1
        for one in held:
            one.close()
    deadline = time.monotonic() + 5
    while server._descriptors.open and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server._descriptors.open == 0


def test_slow_heads_and_bodies_are_cut_off(
    server: BrokerServer, open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(door.SERVER_OPTIONS, "keepalive_timeout", 0.3)
    monkeypatch.setattr(service, "BODY_S", 0.3)
    sock, url = listening()
    port = int(url.rsplit(":", 1)[1])
    with server.serve(open_session(), sock):
        for sent, answer in [
            (b"", b""),
            (b"GET /tools HT", b""),
            (b"POST /search/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408"),
        ]:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
                slow.sendall(sent)
                data = b""
                while part := slow.recv(4096):
                    data += part
                assert data.startswith(answer), sent
                assert bool(data) is bool(answer), sent


def test_refused_calls_are_slowed_down(server: BrokerServer, open_session: Open) -> None:
    session = open_session(limits=Limits(calls=1, seconds=1000))
    sock, url = listening()
    with server.serve(session, sock):
        times = timed_calls(url, 30)
    assert min(times[-20:]) > service.REFUSAL_PAUSE_S


def test_completions_in_flight_are_capped(server: BrokerServer, open_session: Open) -> None:
    flying, most, lock = 0, 0, threading.Lock()

    class Counting:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            nonlocal flying, most
            with lock:
                flying += 1
                most = max(most, flying)
            time.sleep(0.05)
            with lock:
                flying -= 1
            return completion("x")

    sock, url = listening()

    def one(_: int) -> int:
        with Client(url) as client:
            return client("POST", "/v1/chat/completions", {"messages": ASK})[0]

    session = open_session(Counting(), limits=MANY)
    with server.serve(session, sock), ThreadPoolExecutor(24) as pool:
        assert set(pool.map(one, range(24))) == {200}
    assert 2 <= most <= service.INFERENCES
