from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from palio.agents.scripted import MODELS, ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.upstream import HttpUpstream, RejectedError
from palio.records import ConfigError, FaultCode, UpstreamError
from palio.world.tools import tool_schemas

QUESTION: dict[str, Any] = {
    "model": "scripted-careful",
    "messages": [{"role": "user", "content": "i want a red mug by acme, under 50."}],
    "tools": list(tool_schemas()),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(ScriptedUpstream(0)) as running:
        yield running


@pytest.fixture
def client(server: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as opened:
        yield opened


def test_the_openai_client_gets_what_the_upstream_says(client: openai.OpenAI):
    said = client.chat.completions.create(**QUESTION)
    expected = ScriptedUpstream(0).complete(QUESTION)["choices"][0]["message"]
    message = said.choices[0].message
    assert message.tool_calls is not None
    assert [call.model_dump() for call in message.tool_calls] == expected["tool_calls"]
    assert message.model_dump()["reasoning_content"] == expected["reasoning_content"]
    assert said.choices[0].finish_reason == "tool_calls"
    assert said.usage is not None
    assert said.usage.completion_tokens > 0


def test_streaming_gives_the_same_message_in_pieces(client: openai.OpenAI):
    chunks = list(
        client.chat.completions.create(
            **QUESTION, stream=True, stream_options={"include_usage": True}
        )
    )
    expected = ScriptedUpstream(0).complete(QUESTION)
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    thinking = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    message = expected["choices"][0]["message"]
    assert thinking == message["reasoning_content"]
    assert [call["function"] for call in calls] == [c["function"] for c in message["tool_calls"]]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump(exclude_none=True) == expected["usage"]


def test_models_are_listed(client: openai.OpenAI):
    assert tuple(model.id for model in client.models.list()) == MODELS
    assert client.models.retrieve("scripted-terse").id == "scripted-terse"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_an_unknown_model_is_a_typed_refusal(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(**{**QUESTION, "model": "gpt-4"})
    assert raised.value.code == "model_not_found"
    assert "scripted-careful" in str(raised.value)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[1]",
        b'"text"',
        b'{"model":"scripted-careful"}',
        b'{"model":"scripted-careful","messages":[]}',
        b'{"model":"scripted-careful","messages":[{"role":"user","content":"x"}],"stream":"no"}',
        b'{"model":"scripted-careful","messages":[{"role":"system","content":"x"}]}',
        b"[" * 100_000,
    ],
)
def test_bad_bodies_are_refused_as_invalid_requests(server: ModelServer, body: bytes):
    status, answer = exchange(server, "POST", "/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_other_paths_are_not_found_in_the_same_form(server: ModelServer):
    assert exchange(server, "GET", "/v2/nothing")[0] == 404
    assert exchange(server, "GET", "/v1/chat/completions")[1]["error"]["message"]
    assert exchange(server, "GET", "/health")[1]["status"] == "ok"


ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/scripted-careful"),
    ("POST", "/v1/chat/completions"),
]
KEYS = [b"", b"sesame", b"Bearer", b"Bearer sesam", b"Bearer sesames", b"Bearer \xff\xfe"]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_key_is_required_where_one_is_set(method: str, path: str, streamed: bool):
    """A header of other bytes than UTF-8 is a wrong key like any other."""
    body = json.dumps({**QUESTION, "stream": streamed}).encode() if method == "POST" else b""
    with ModelServer(ScriptedUpstream(), api_key="sesame") as locked:
        for key in KEYS:
            given = {"Authorization": key} if key else {}
            status, answer = exchange(locked, method, path, body, given)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        with openai.OpenAI(base_url=locked.url, api_key="sesame") as client:
            assert client.models.list().data
            assert client.models.retrieve("scripted-careful").id
            assert client.chat.completions.create(**QUESTION).choices


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FaultCode.upstream_rate_limited, 429),
        (FaultCode.upstream_timed_out, 504),
        (FaultCode.upstream_unreachable, 503),
        (FaultCode.upstream_garbage, 502),
        (FaultCode.upstream_server_error, 500),
    ],
)
def test_faults_of_the_upstream_keep_their_kind(code: FaultCode, status: int):
    class Failing:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            raise UpstreamError("no luck", code=code)

    with ModelServer(Failing()) as failing:
        body = json.dumps(QUESTION).encode()
        got, answer = exchange(failing, "POST", "/v1/chat/completions", body)
    assert (got, answer["error"]["type"]) == (status, _kind(status))


def test_the_brokers_own_client_round_trips(server: ModelServer):
    with HttpUpstream(server.url, retries=0) as upstream:
        assert upstream.complete(dict(QUESTION)) == ScriptedUpstream(0).complete(QUESTION)
        with pytest.raises((RejectedError, UpstreamError)):
            upstream.complete({**QUESTION, "model": "gpt-4"})


def test_a_taken_port_is_a_clear_error(server: ModelServer):
    with (
        pytest.raises(ConfigError, match="cannot serve"),
        ModelServer(ScriptedUpstream(), port=server.port),
    ):
        pass


def _kind(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def exchange(
    server: ModelServer,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str | bytes] | None = None,
) -> tuple[int, dict[str, Any]]:
    import http.client

    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def test_the_command_serves_until_it_is_interrupted():
    code = "from palio.cli.main import run; run()"
    command = [sys.executable, "-c", code, "model", "serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().decode().rsplit(" ", 1)[-1].strip()
        with openai.OpenAI(base_url=url, api_key="none") as client:
            assert client.chat.completions.create(**QUESTION).choices
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        for data in (b"GARBAGE\r\n\r\n", head + b"Content-Encoding: gzip\r\n\r\nabcde"):
            place = urlsplit(url)
            with socket.create_connection((place.hostname, place.port), 10) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1000):
                    pass
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == b""
