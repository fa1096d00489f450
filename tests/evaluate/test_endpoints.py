"""An endpoint that is broken, slow or strange costs an evaluation nothing: blame, and never a 0."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from palio.agents.scripted import ScriptedUpstream
from palio.agents.server import ModelServer
from palio.broker.first_request import FirstRequest
from palio.broker.upstream import RejectedError
from palio.cli.main import app
from palio.evaluate.rollouts import read_rollouts, read_scores
from palio.records import UpstreamError
from palio.suites.files import read_suite
from tests.evaluate.test_cli import Flaky, hash_of
from tests.evaluate.test_pin import Shop, call, refused
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


def completion(**message: Any) -> bytes:
    told = {"role": "assistant", "content": "", **message}
    return json.dumps({"choices": [{"message": told, "finish_reason": "stop"}]}).encode()


class Endpoint(ModelServer):
    """A server whose completions are all alike, whatever they are."""

    def __init__(self, body: bytes, status: int = 200, delay: float = 0.0) -> None:
        super().__init__(ScriptedUpstream())
        self.body, self.status, self.delay = body, status, delay
        self.asked = self.left = 0
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self.answer)

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.asked += 1
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:  # who asked has hung up
            self.left += 1
            raise
        return web.Response(body=self.body, status=self.status, content_type="text/html")


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        (b"<html>hello</html>", 200, 3004, "not JSON"),
        (b"", 200, 3004, "not JSON"),
        (b'{"choices": []}', 200, 3004, "no chat completion"),
        (completion(content=None), 200, 3004, "null content"),
        (b"<html>Not Found</html>", 404, 3002, "check the URL"),
        (b'{"error": {"code": "model_not_found"}}', 404, 3007, "name a model"),
        (b"auto tool choice is off", 400, 3002, "the first request of a conversation is refused"),
        (b"boom", 500, 3002, "see that the model server runs"),
    ],
    ids=str,
)
def test_an_endpoint_that_answers_nonsense_scores_nobody_0(
    shop: Shop, tmp_path: Path, body: bytes, status: int, code: int, said: str
) -> None:
    with Endpoint(body, status) as server:
        words = ("--base-url", server.url, "--model", "m", "--limit", 2, "--json")
        why = refused(UpstreamError, "run", *shop.given, "--out", tmp_path / "out", *words)
        assert f"{server.url}/chat/completions" in why
    assert f"broke the first 2 rollouts; platform {code}" in why
    assert said in why
    assert "run the same command again" in why
    scores = read_scores(tmp_path / "out" / "greedy").values()
    assert [(score.status, score.fault.code) for score in scores if score.fault] == [
        ("unscored", code)
    ] * 2
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_slow_endpoint_is_the_platform_s_fault_and_asked_no_longer_than_a_rollout_lasts(
    shop: Shop, tmp_path: Path
) -> None:
    """A try of its own would wait for 120 s, and the server answers within half of that."""
    with Endpoint(completion(content="x"), delay=60) as server:
        words = ("--base-url", server.url, "--model", "m", "--limit", 2, "--seconds", 1)
        why = refused(UpstreamError, "run", *shop.given, "--out", tmp_path / "out", *words)
        wait_for(lambda: server.left == server.asked)
    assert server.asked == 2, "and nobody asks again for a run that is over"
    assert "nothing could be scored" in why
    scores = read_scores(tmp_path / "out" / "greedy").values()
    assert {score.status for score in scores} == {"unscored"}
    assert {score.fault and score.fault.code for score in scores} == {3005}


def test_what_a_model_says_wrongly_is_its_own_failure(shop: Shop, tmp_path: Path) -> None:
    call_of_none = [{"id": "x", "type": "function", "function": {}}]
    for number, message in enumerate(({"content": "\0 blah"}, {"tool_calls": call_of_none})):
        with Endpoint(completion(**message)) as server:
            words = ("--base-url", server.url, "--model", "m", "--limit", 2, "--json")
            out = tmp_path / str(number)
            stage = json.loads(call("run", *shop.given, "--out", out, *words))["stages"][0]
        assert (stage["unscored"], stage["faults"]) == (0, [])
        assert (stage["intent"]["overall"]["asr"], stage["intent"]["overall"]["n"]) == (0.0, 2)


class TooLong:
    """Refuses every request, as a server does whose context is full."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        raise RejectedError("too long", where="http://x/v1")


def test_only_a_refusal_of_what_the_model_wrote_is_the_model_s() -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    later = [*first, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "t"}]
    with pytest.raises(UpstreamError, match="first request of a conversation is refused"):
        FirstRequest(TooLong()).complete({"messages": first})
    with pytest.raises(RejectedError):
        FirstRequest(TooLong()).complete({"messages": later})


def test_some_broken_rollouts_are_told_by_code_and_blame(shop: Shop, tmp_path: Path) -> None:
    problems = read_suite(shop.folder / "suite.json").problems
    gone = sum(hash_of(each.query) % 3 == 0 for each in problems)
    assert 0 < gone < 6
    with ModelServer(Flaky()) as server:
        line = ["eval", "run", *map(str, shop.given), "--out", str(tmp_path), "--model", "m"]
        done = CliRunner().invoke(app, [*line, "--base-url", server.url, "--json"])
    assert done.exit_code == 0
    assert f"{gone} rollouts unscored, platform 3009 upstream_key_refused" in done.stderr
    (fault,) = json.loads(done.stdout)["stages"][0]["faults"]
    assert (fault["rollouts"], fault["blame"], fault["code"]) == (gone, "platform", 3009)


CHILD = "import sys; from palio.cli.main import run; sys.argv = ['palio', *sys.argv[1:]]; run()"


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_a_process_that_is_ended_loses_nothing_and_ctrl_c_waits_for_nobody(
    shop: Shop, tmp_path: Path, ending: signal.Signals
) -> None:
    """The server answers two conversations and then never again."""
    asked: list[str] = []

    class Tiring(Endpoint):
        async def answer(self, request: web.Request) -> web.Response:
            body = await request.json()
            query = next(each["content"] for each in body["messages"] if each["role"] == "user")
            asked.append(query) if query not in asked else None
            if query not in asked[:2] and self.delay:
                await asyncio.sleep(self.delay)
            answer = ScriptedUpstream().complete({**body, "model": "scripted-hasty"})
            return web.json_response(answer)

    rows = tmp_path / "out" / "greedy" / "rollouts.jsonl"
    with Tiring(b"", delay=600) as server:
        words = ["eval", "run", *map(str, shop.given), "--out", str(tmp_path / "out")]
        words += ["--base-url", server.url, "--model", "m", "--seconds", "900", "--json"]
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        deadline = time.monotonic() + 300
        while not (rows.exists() and rows.read_bytes().count(b"\n") >= 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(child.pid, ending)
        _, told = child.communicate(timeout=120)
        if ending is signal.SIGINT:
            assert child.returncode == 130
            assert b"run the same command again" in told
            assert b"Traceback" not in told
        before = [
            row.trajectory.trajectory_id for row in read_rollouts(tmp_path / "out" / "greedy")
        ]
        assert len(before) == 2
        server.delay = 0.0
        stage = json.loads(call(*words[1:]))["stages"][0]
    after = [row.trajectory.trajectory_id for row in read_rollouts(tmp_path / "out" / "greedy")]
    assert after[:2] == before
    assert len(after) == len(set(after)) == 6
    assert (stage["unscored"], stage["intent"]["overall"]["n"]) == (0, 6)
