"""Over HTTP an agent gets what the session gives, whatever it sends; slow models hold up nobody."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from palio.broker.limits import Limits
from palio.broker.server import BrokerServer
from palio.broker.service import MAX_BODY
from palio.broker.session import Session
from palio.broker.upstream import HttpUpstream
from palio.records import Ending, FaultCode, UpstreamError
from tests.broker.conftest import Replies, completion
from tests.broker.modelserver import ModelServer

Open = Callable[..., Session]
ASK = [{"role": "user", "content": "a red mug"}]


class Client:
    """One kept-alive connection to one run."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self.path = parts.path
        self.http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)

    def __call__(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.http.request(method, self.path + path, data, named)
        reply = self.http.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if text else None, reply.headers

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()


NOISE = """
import socket, sys
from urllib.parse import urlsplit
from palio.broker.server import BrokerServer
from palio.broker.session import Session
from palio.records import AgentRef
from tests.broker.conftest import PROBLEM, tiny_world

with BrokerServer() as server:
    base = urlsplit(server.register(Session(AgentRef(name="a"), PROBLEM, tiny_world())))
    head = f"POST {base.path}/search/find_product HTTP/1.1\\r\\nHost: x\\r\\n".encode()
    for data in (
        b"GARBAGE\\r\\n\\r\\n",
        head + b"X-Long: " + b"x" * 20_000 + b"\\r\\n\\r\\n",
        head + b"Content-Length: 99\\r\\n\\r\\n{",
        head + b"Content-Encoding: gzip\\r\\nContent-Length: 5\\r\\n\\r\\nabcde",
    ):
        with socket.create_connection((base.hostname, base.port)) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
"""


def test_broken_requests_print_nothing_on_the_host() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOISE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""


def test_tools_over_get_and_post(server: BrokerServer, open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", '{"q":"red mug"}'))))
    with Client(server.register(session)) as client:
        client("POST", "/inference/chat/completions", {"messages": ASK})
        status, rows, headers = client("GET", "/search/find_product?q=red%20mug&price=cheap")
        assert status == 200
        assert rows[0]["product_id"] == "1"
        assert "cheap" in json.loads(headers["X-Palio-Warnings"])[0]
        body = {"q": "red mug"}
        status, rows, _ = client("POST", "/search/find_product", body, X_Tool_Call_Id="c1")
        assert rows[0]["product_id"] == "1"
        client("POST", "/search/recommend_product", json.dumps({"product_ids": "1"}))
        client("POST", "/search/terminate", b"{}")
    run = session.close()
    assert [event.emitted_by for event in run.dispatches] == [None, 0, None, None]
    assert run.dispatches[1].arguments == '{"q": "red mug"}'
    assert (run.answer, run.ending) == ("1", Ending.terminated)


def test_errors_of_tools_are_observations(server: BrokerServer, open_session: Open) -> None:
    with Client(server.register(open_session())) as client:
        for path, body in [
            ("/search/no_such_tool", b"{}"),
            ("/search/", b"{}"),
            ("/search/find_product", b"{not json"),
            ("/search/view_product_information", b"[1, 2]"),
            ("/search/recommend_product", b"\xff\xfe"),
            ("/search/calculate_voucher", b"[" * 100_000),
            ("/search/a%00%2Fb%20c", b"null"),
        ]:
            status, reply, headers = client("POST", path, body)
            assert status == 200, path
            assert reply["error"]
            assert json.loads(headers["X-Palio-Error"])


def test_other_paths_and_runs(server: BrokerServer, open_session: Open) -> None:
    session = open_session()
    base = server.register(session)
    with Client(base) as client:
        assert client("GET", "/nothing")[0] == 404
        assert client("DELETE", "/tools")[0] == 404
        assert len(client("GET", "/tools")[1]["tools"]) == 7
        assert client("GET", "/status")[1]["left"]["calls"] == session.limits.calls
        assert client("GET", "/v1/models")[1]["data"][0]["id"] == "m1"
        server.unregister(base)
        assert client("GET", "/tools")[0] == 404
    with Client(server.url) as client:
        assert client("GET", "/run/guess/tools")[0] == 404
        assert client("GET", "/health")[1]["status"] == "ok"
        assert client("GET", "/elsewhere")[0] == 404


def test_secrets_differ_and_are_long(server: BrokerServer, open_session: Open) -> None:
    urls = {server.register(open_session()) for _ in range(20)}
    assert len(urls) == 20
    assert all(len(url.rsplit("/", 1)[-1]) >= 32 for url in urls)


def test_the_openai_client_works_unchanged(server: BrokerServer, open_session: Open) -> None:
    session = open_session(Replies(completion("", ("c1", "find_product", '{"q":"mug"}'))))
    base = server.register(session)
    with openai.OpenAI(base_url=base + "/v1", api_key="x", max_retries=0) as client:
        made = client.chat.completions.create(model="default", messages=ASK)  # type: ignore[arg-type]
        assert made.choices[0].message.tool_calls[0].function.name == "find_product"  # type: ignore[index,union-attr]
        parts = list(
            client.chat.completions.create(model="default", messages=ASK, stream=True)  # type: ignore[arg-type]
        )
        asked = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
        assert asked[0].id.startswith("call_")
        assert "".join(call.function.arguments for call in asked if call.function) == '{"q":"mug"}'
        assert [model.id for model in client.models.list()] == ["m1"]
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="default", messages=[])
    assert len(session.close().inferences) == 2


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FaultCode.upstream_unreachable, 503),
        (FaultCode.upstream_server_error, 502),
        (FaultCode.upstream_rate_limited, 429),
        (FaultCode.upstream_garbage, 502),
        (FaultCode.upstream_timed_out, 504),
    ],
)
def test_a_failing_upstream_is_a_clear_answer(
    server: BrokerServer, open_session: Open, code: FaultCode, status: int
) -> None:
    session = open_session(Replies(UpstreamError("it broke", code=code)))
    with Client(server.register(session)) as client:
        got, body, headers = client("POST", "/v1/chat/completions", {"messages": ASK})
    assert (got, body["error"]["code"]) == (status, code.name)
    assert headers["X-Should-Retry"] == "false"
    run = session.close()
    assert (run.ending, run.fault and run.fault.code) == (Ending.infra, code)


class Broken:
    """An upstream with a bug, asked on the broker's loop."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("asked on a thread")

    async def acomplete(self, body: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(body["model"])


def test_a_bug_of_an_upstream_on_the_loop_is_the_platform_s_too(
    server: BrokerServer, open_session: Open
) -> None:
    session = open_session(Broken())
    with Client(server.register(session)) as client:
        status, body, _ = client("POST", "/v1/chat/completions", {"messages": ASK})
    assert (status, body["error"]["code"]) == (502, "upstream_server_error")
    run = session.close()
    assert (run.ending, run.fault and run.fault.code) == (
        Ending.infra,
        FaultCode.upstream_server_error,
    )


def test_over_a_real_model_server(server: BrokerServer, open_session: Open) -> None:
    with (
        ModelServer(500, "good").running() as models,
        HttpUpstream(models.url, backoff_s=0.01) as upstream,
    ):
        session = open_session(upstream)
        with Client(server.register(session)) as client:
            status, body, _ = client("POST", "/v1/chat/completions", {"messages": ASK})
    assert (status, body["choices"][0]["message"]["content"]) == (200, "hello")
    assert session.close().inferences[0].fault is None


def test_over_budget_and_over_time(server: BrokerServer, open_session: Open, clock: Any) -> None:
    session = open_session(Replies(completion("x")), limits=Limits(inferences=1, seconds=10))
    with Client(server.register(session)) as client:
        assert client("POST", "/v1/chat/completions", {"messages": ASK})[0] == 200
        assert client("POST", "/v1/chat/completions", {"messages": ASK})[0] == 403
        clock.now += 11
        assert client("POST", "/v1/chat/completions", {"messages": ASK})[0] == 410
        assert client("GET", "/search/find_product?q=mug")[0] == 410


def test_a_body_over_the_cap_is_refused(server: BrokerServer, open_session: Open) -> None:
    with Client(server.register(open_session())) as client:
        assert client("POST", "/search/find_product", b" " * (MAX_BODY + 1))[0] == 413
    with Client(server.register(open_session())) as client:
        assert client("GET", "/tools")[0] == 200


def test_a_slow_model_does_not_hold_up_tools(server: BrokerServer, open_session: Open) -> None:
    gate = threading.Event()

    class Slow:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            gate.wait(10)
            return completion("late")

    slow, quick = open_session(Slow()), open_session()
    with (
        Client(server.register(slow)) as one,
        Client(server.register(quick)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(one, "POST", "/v1/chat/completions", {"messages": ASK})
        for _ in range(20):
            assert other("GET", "/search/find_product?q=mug")[0] == 200
        assert not waiting.done()
        gate.set()
        assert waiting.result()[0] == 200


def test_many_runs_at_once_keep_their_records_apart(
    server: BrokerServer, open_session: Open
) -> None:
    sessions = [open_session(Replies(completion(f"run {n}"))) for n in range(12)]

    def drive(session: Session) -> None:
        with Client(server.register(session)) as client:
            for n in range(15):
                client("GET", f"/search/find_product?q=mug%20{n}")
                client("POST", "/v1/chat/completions", {"messages": ASK})

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(drive, sessions))
    for n, session in enumerate(sessions):
        run = session.close()
        assert [event.seq for event in run.events] == list(range(30))
        assert {e.completion.content for e in run.inferences if e.completion} == {f"run {n}"}


def test_many_threads_may_start_it(open_session: Open) -> None:
    fresh = BrokerServer()
    try:
        with ThreadPoolExecutor(8) as pool:
            urls = list(pool.map(lambda _: fresh.register(open_session()), range(8)))
        assert len({urlsplit(url).port for url in urls}) == 1
        assert urlsplit(urls[0]).port
    finally:
        fresh.stop()


def test_a_port_in_use_is_said(server: BrokerServer) -> None:
    with pytest.raises(OSError, match="cannot serve"):
        BrokerServer(port=int(server.url.rsplit(":", 1)[-1])).start()
