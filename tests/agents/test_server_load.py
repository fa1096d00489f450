"""A server holds as many conversations as its model does, and keeps none that nobody waits for."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from palio.agents.server import ModelServer
from palio.broker.hangup import hung_up
from palio.broker.upstream import HttpUpstream
from palio.records import ConfigError, FaultCode, InputError, UpstreamError
from tests.agents.test_server import exchange

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a mug"}]}
MANY = 40
ANSWER: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    ],
}


class Says:
    """An upstream that is a function."""

    def __init__(self, says: Callable[[dict[str, Any]], dict[str, Any]], **more: Any) -> None:
        self.complete = says
        self.__dict__.update(more)


def post(server: ModelServer, body: bytes) -> tuple[int, Any]:
    return exchange(server, "POST", "/v1/chat/completions", body)


def test_requests_meet_in_the_model_whatever_the_number_of_cores() -> None:
    """Each waits for all: with asyncio's own threads there would be six on two cores."""
    together = threading.Barrier(MANY)

    def meet(_: dict[str, Any]) -> dict[str, Any]:
        together.wait(60)
        return ANSWER

    with (
        ModelServer(Says(meet)) as server,
        HttpUpstream(server.url, retries=0) as client,
        ThreadPoolExecutor(MANY) as pool,
    ):
        answers = list(pool.map(client.complete, [ASKED] * MANY))
    assert answers == [ANSWER] * MANY


def test_a_client_that_hangs_up_is_told_to_who_answers_it() -> None:
    came, left = threading.Event(), threading.Event()

    def write(_: dict[str, Any]) -> dict[str, Any]:
        came.set()
        ends = time.monotonic() + 30
        while time.monotonic() < ends and not left.is_set():
            time.sleep(0.01)
            if hung_up():
                left.set()
        return ANSWER

    with ModelServer(Says(write)) as server:
        body = json.dumps(ASKED).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
        with socket.create_connection((server.host, server.port), 10) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            assert came.wait(20)
            assert not left.is_set()
        assert left.wait(20)
        assert post(server, body) == (200, ANSWER), "and the next one is answered"


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (KeyError("function"), 500, "server_error"),
        (RecursionError(), 500, "server_error"),
        (UpstreamError("no luck", code=FaultCode.upstream_server_error), 500, "server_error"),
        (InputError("a row is none"), 400, "invalid_request_error"),
        (ConfigError("a template is none"), 400, "invalid_request_error"),
    ],
)
def test_whatever_is_raised_has_openai_s_form_and_bugs_are_told(
    raised: Exception, status: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise raised

    with caplog.at_level(logging.ERROR), ModelServer(Says(fail)) as server:
        found, answer = post(server, json.dumps(ASKED).encode())
    assert (found, answer["error"]["type"]) == (status, kind)
    bug = isinstance(raised, LookupError | RecursionError)
    assert (type(raised).__name__ in answer["error"]["message"]) == bug
    assert bool(caplog.records) == bug


def test_what_no_tokenizer_takes_does_not_reach_it() -> None:
    heard: list[dict[str, Any]] = []

    def hear(body: dict[str, Any]) -> dict[str, Any]:
        heard.append(body)
        return ANSWER

    with ModelServer(Says(hear)) as server:
        said = b'{"model":"m","messages":[{"role":"user","content":"\\ud83d mug \\uD83D\\uDE00"}],'
        assert post(server, said + b'"tools":[{"a":"\\udfff"}]}')[0] == 200
        status, answer = post(server, said + b'"temperature":NaN}')
    assert status == 400
    assert "NaN" in answer["error"]["message"]
    [body] = heard
    assert body["messages"][0]["content"] == "\ufffd mug \U0001f600"
    assert json.dumps(body, ensure_ascii=False).encode()


def test_a_model_that_answers_no_more_is_no_healthy_server() -> None:
    with ModelServer(Says(lambda _: ANSWER, alive=True)) as server:
        assert exchange(server, "GET", "/health") == (200, {"status": "ok", "completions": 0})
    with ModelServer(Says(lambda _: ANSWER, alive=False)) as server:
        assert exchange(server, "GET", "/health")[0] == 503
