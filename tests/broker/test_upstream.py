"""Each way in which a model server fails has its own code, and bounded retries come first."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from palio.broker.hangup import seconds_left
from palio.broker.limits import Limits
from palio.broker.refusals import RunOver
from palio.broker.relay import run_of_key
from palio.broker.session import Session
from palio.broker.upstream import (
    HttpUpstream,
    RejectedError,
    Upstream,
    ask,
    error_fields,
    error_of,
    scoped,
)
from palio.records import (
    ConfigError,
    Ending,
    FaultCode,
    InputError,
    IntegrityError,
    UpstreamError,
)
from tests.broker.modelserver import ModelServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
NULL = b'{"choices":[{"message":{"role":"assistant","content":null}}]}'


class Waits:
    """Sleeps not at all and remembers how long it was asked to."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)


def complete(server: ModelServer, retries: int = 2, **more: Any) -> tuple[Any, list[float]]:
    waits = Waits()
    draws = itertools.cycle([0.0, 1.0])
    more.setdefault("jitter", lambda: next(draws))
    with HttpUpstream(server.url, retries=retries, sleep=waits, **more) as upstream:
        try:
            return upstream.complete(dict(BODY)), waits.asked
        except (UpstreamError, RejectedError) as error:
            return error, waits.asked


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (500, FaultCode.upstream_server_error),
        (503, FaultCode.upstream_server_error),
        (429, FaultCode.upstream_rate_limited),
        (b"<html>", FaultCode.upstream_garbage),
        (b"\xff\xfe", FaultCode.upstream_garbage),
        (b"", FaultCode.upstream_garbage),
        (b"[" * 100_000, FaultCode.upstream_garbage),
        (b"[]", FaultCode.upstream_garbage),
        (b'{"choices":[]}', FaultCode.upstream_garbage),
        (b'{"choices":[{"message":"x"}]}', FaultCode.upstream_garbage),
        (b'{"choices":[{"message":{"role":"user","content":"x"}}]}', FaultCode.upstream_garbage),
        (NULL, FaultCode.upstream_garbage),
        ("silent", FaultCode.upstream_timed_out),
        ("drop", FaultCode.upstream_unreachable),
        ("cut", FaultCode.upstream_truncated),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_failure_has_its_code_after_retries(behaviour: Any, code: FaultCode) -> None:
    with ModelServer(behaviour).running() as server:
        error, waits = complete(server, retries=1, timeout_s=0.3)
    assert isinstance(error, UpstreamError)
    assert (error.code, error.retryable, len(server.bodies)) == (code, True, 2)
    assert error.where == server.url + "/chat/completions"
    assert error.remedy
    assert len(waits) == 1


@pytest.mark.parametrize(
    "url", ["", "localhost:8000/v1", "ftp://a/v1", "http://", "http://[::1/v1", "http://a:99999/v1"]
)
def test_what_is_no_url_is_refused_before_any_run(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL"):
        HttpUpstream(url)


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with HttpUpstream(url, retries=0) as upstream, pytest.raises(UpstreamError) as caught:
        upstream.complete(dict(BODY))
    assert caught.value.code == FaultCode.upstream_unreachable


@pytest.mark.parametrize("behaviour", [500, 429, b"<html>", NULL, "drop"])
def test_a_passing_failure_is_overcome(behaviour: Any) -> None:
    with ModelServer(behaviour, behaviour, "good").running() as server:
        reply, waits = complete(server)
    assert reply["choices"][0]["message"]["content"] == "hello"
    assert waits == ([0.25, 0.25] if behaviour == 429 else [0.25, 1.5])


def test_waits_stay_within_the_budget() -> None:
    with ModelServer(500).running() as server:
        error, waits = complete(server, retries=50, budget_s=3.0)
    assert isinstance(error, UpstreamError)
    assert sum(waits) == 3.0
    assert len(server.bodies) == len(waits) + 1


TOO_LONG = b'{"error": {"message": "maximum context length", "code": "context_length_exceeded"}}'


@pytest.mark.parametrize("behaviour", [400, 413, 422, (400, TOO_LONG)], ids=str)
def test_a_refused_request_is_the_agent_s_and_not_retried(behaviour: Any) -> None:
    with ModelServer(behaviour).running() as server:
        error, _ = complete(server)
    assert isinstance(error, RejectedError)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (401, FaultCode.upstream_key_refused),
        (403, FaultCode.upstream_key_refused),
        (404, FaultCode.upstream_server_error),
        ((404, b"The model `x` does not exist"), FaultCode.upstream_model_unknown),
        ((400, b'{"error": {"code": "model_not_found"}}'), FaultCode.upstream_model_unknown),
    ],
    ids=str,
)
def test_a_wrong_set_up_is_the_platform_s_and_not_retried(behaviour: Any, code: FaultCode) -> None:
    with ModelServer(behaviour).running() as server:
        error, _ = complete(server)
    assert isinstance(error, UpstreamError)
    assert (error.code, error.retryable) == (code, False)
    assert len(server.bodies) == 1


KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize(
    ("behaviour", "key", "remedy"),
    [
        ((401, b"wrong key " + KEY.encode()), KEY, "check the key and what it may use"),
        ((403, b"not allowed"), KEY, "check the key and what it may use"),
        ((401, b"who are you"), "", "no key was sent"),
        ((404, b"<html>Not Found</html>"), KEY, "check the URL"),
        ((404, b'{"error": {"code": "model_not_found"}}'), KEY, "name a model"),
    ],
    ids=str,
)
def test_a_wrong_set_up_names_url_model_and_remedy_and_no_secret(
    behaviour: Any, key: str, remedy: str
) -> None:
    with ModelServer(behaviour).running() as server:
        error, _ = complete(server, api_key=key)
    told = str(error)
    assert f"{server.url}/chat/completions" in told
    assert f"answered {behaviour[0]} to a request for the model 'm'" in told
    assert remedy in error.remedy
    assert KEY not in told


def test_what_a_url_holds_in_secret_is_sent_and_not_shown() -> None:
    with ModelServer((401, b"no")).running() as server:
        secret = server.url.replace("//", "//me:hidden@") + "/?api-version=7&sig=hidden"
        with HttpUpstream(secret) as upstream, pytest.raises(UpstreamError) as refused:
            upstream.complete(dict(BODY))
        assert f"{server.url}/chat/completions" in str(refused.value)
        assert "hidden" not in str(refused.value)
        assert server.headers[0]["Authorization"].startswith("Basic ")
        with pytest.raises(ConfigError, match="names a user and a key"):
            HttpUpstream(secret, KEY)
    assert upstream.url.endswith("/v1/chat/completions?api-version=7&sig=hidden")


def test_each_run_has_a_key_of_its_own_and_nobody_sees_the_master_key() -> None:
    with (
        ModelServer("good").running() as server,
        HttpUpstream(server.url, "master", scoped_keys=True) as upstream,
    ):
        for run in ("run-1", "run-2", "run-1"):
            scoped(upstream, run).complete(dict(BODY))
    shown = [headers["Authorization"].removeprefix("Bearer ") for headers in server.headers]
    assert shown[0] == shown[2] != shown[1]
    assert "master" not in "".join(shown)
    assert [run_of_key("master", key) for key in shown[:2]] == ["run-1", "run-2"]
    assert run_of_key("other", shown[0]) is None
    assert run_of_key("master", shown[0].replace("run-1", "run-2")) is None
    assert run_of_key("master", "") is None


def test_errors_come_back_from_the_journal_as_they_were() -> None:
    for error in (
        UpstreamError("x", code=FaultCode.upstream_garbage, retryable=True, where="w", remedy="r"),
        RejectedError("too long", where="w"),
    ):
        again = error_of(json.loads(json.dumps(error_fields(error))))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_only_what_is_wrong_with_a_request_is_blamed_on_who_asked() -> None:
    class Broken:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            raise self.error

    told = ask(Broken(InputError("no conversation", where="w")), dict(BODY))
    assert isinstance(told, RejectedError)
    for error in (IntegrityError("weights changed", remedy="r"), ConfigError("c"), OSError("o")):
        told = ask(Broken(error), dict(BODY))
        assert isinstance(told, UpstreamError)
        assert told.code is FaultCode.upstream_server_error
        assert str(error).split(" (")[0] in told.what


def test_null_content_with_a_call_or_thinking_is_a_completion() -> None:
    call = {"id": "c", "function": {"name": "t", "arguments": "{}"}}
    for more in ({"tool_calls": [call]}, {"reasoning_content": "hm"}):
        body = {"choices": [{"message": {"role": "assistant", "content": None, **more}}]}
        with ModelServer(json.dumps(body).encode()).running() as server:
            assert complete(server)[0] == body


def test_key_and_model_are_sent() -> None:
    with ModelServer("good").running() as server:
        complete(server, api_key="secret", model="forced")
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.bodies[0]["model"] == "forced"


def test_many_threads_share_one_upstream() -> None:
    """All at once: the server answers none before it has heard all."""
    together = ModelServer(("together", 16)).running()
    with together as server, HttpUpstream(server.url) as upstream:
        assert isinstance(upstream, Upstream)
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(upstream.complete, [dict(BODY) for _ in range(16)]))
    assert len(replies) == 16


@pytest.mark.parametrize(
    ("seconds", "gone", "ending"), [(1.0, 0.0, Ending.infra), (10.0, 9.0, Ending.timed_out)]
)
def test_a_try_ends_with_its_run_and_only_half_a_run_of_silence_is_the_server_s(
    open_session: Callable[..., Session], seconds: float, gone: float, ending: Ending
) -> None:
    """As at the broker, which closes with the run; each try of this server would fail later."""
    ahead = 0.0
    with (
        ModelServer("silent").running() as server,
        HttpUpstream(server.url, timeout_s=2.0, sleep=Waits()) as upstream,
    ):
        session = open_session(
            upstream, Limits(seconds=seconds), clock=lambda: time.monotonic() + ahead
        )
        ahead = gone
        with pytest.raises(RunOver, match="are over"):
            session.complete(dict(BODY))
        assert len(server.bodies) == 1, "who has no time left asks no second time"
        assert seconds_left() is None
    run = session.close(Ending.timed_out)
    assert run.inferences[0].finish_reason == "pending"
    assert run.ending is ending
    assert (run.fault.code if run.fault else 0) == (0 if gone else FaultCode.upstream_timed_out)


def test_close_ends_its_thread() -> None:
    before = threading.active_count()
    with ModelServer("good").running() as server, HttpUpstream(server.url) as upstream:
        upstream.complete(dict(BODY))
    assert threading.active_count() == before
    upstream.close()
