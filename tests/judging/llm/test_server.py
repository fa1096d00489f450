"""Whatever a model server does, a verdict is judged or unjudged with a reason; never 0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

pytest.importorskip("openai", reason="a judge that asks a model needs the extra `judge`")

from palio.judging.llm import Endpoint, JudgeConfig, LlmJudge, Member, Price
from palio.judging.llm.injection import packaged_bases
from palio.judging.llm.server import retry_after
from palio.records import Blame, ReasoningVerdict
from tests.judging.llm.modelserver import GOOD, Handler, ModelServer, always, completion, good
from tests.judging.llm.modelserver import refusal as no

BASE = {run.trajectory_id: run for run in packaged_bases()}["one_candidate"]
TEXT = json.dumps(GOOD)


class Waits:
    """A sleep that takes no time, and what it was asked for; the clock follows it."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now


def judge_at(*urls: str, waits: Waits | None = None, **fields: Any) -> LlmJudge:
    config = {name: fields.pop(name) for name in ("prices", "concurrency") if name in fields}
    endpoints = tuple(Endpoint(url=url) for url in urls)
    member = Member(**{"model": "judge-1", "endpoints": endpoints, **fields})
    waits = waits or Waits()
    made = JudgeConfig(members=(member,), **config)
    return LlmJudge(made, sleep=waits.sleep, clock=waits.clock)


def judged(handler: Handler, **fields: Any) -> tuple[ReasoningVerdict, ModelServer, LlmJudge]:
    with ModelServer(handler) as server, judge_at(server.url, **fields) as judge:
        return judge.verdict(BASE), server, judge


def test_a_good_reply_becomes_a_verdict_with_its_whole_identity() -> None:
    verdict, server, _ = judged(always(TEXT), prices={"judge-1": Price(input=1.0, output=5.0)})
    assert verdict.quality == 0.7
    assert verdict.coefficient == pytest.approx(0.9125)
    assert [gate.passed for gate in verdict.gates] == [True, True, True, False]
    assert [gate.event_seq for gate in verdict.gates[:3]] == [0, 3, 3]
    (opinion,) = verdict.opinions
    assert opinion.model == "judge-1"
    assert opinion.prompt.startswith("sha256:")
    assert opinion.decoding["temperature"] == 0.0
    assert opinion.cost == pytest.approx(1000e-6 + 200 * 5e-6)
    form = server.bodies[0]["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["strict"] is True


FAULTS: dict[str, tuple[Any, str]] = {
    "null": (None, "null_reply"),
    "empty": ("  \n", "empty_reply"),
    "prose": ("I would say it is quite good.", "unreadable_reply"),
    "half": (TEXT[: len(TEXT) // 2], "unreadable_reply"),
    "truncated": (completion(TEXT, finish_reason="length"), "truncated_reply"),
    "filtered": (completion("", finish_reason="content_filter"), "refused_reply"),
    "out of bin": (json.dumps({**GOOD, "value": 0.8}), "out_of_bin"),
    "zero": (json.dumps({**GOOD, "value": 0}), "out_of_bin"),
    "no value": (json.dumps({**GOOD, "value": None}), "unreadable_reply"),
    "gate missing": (json.dumps({**GOOD, "gates": GOOD["gates"][:2]}), "inconsistent"),
    "wrong model": (completion(TEXT, model="other-7b"), "wrong_model"),
    "no choices": ({"object": "error", "message": "overloaded"}, "garbage"),
    "cut prompt": (
        completion(TEXT, usage={"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}),
        "silently_cut",
    ),
    "html": (
        lambda: web.Response(text="<html>Bad gateway</html>", content_type="text/html"),
        "garbage",
    ),
    "html 502": (lambda: web.Response(text="<html>502</html>", status=502), "server_error"),
    "broken json": (
        lambda: web.Response(body=b'{"choices": [', content_type="application/json"),
        "garbage",
    ),
    "unauthorised": (lambda: no(401, "wrong key"), "refused"),
    "no such model": (lambda: no(404, "model not found"), "refused"),
    "too long": (lambda: no(400, "maximum context length is 4096 tokens"), "context_exceeded"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_unjudged_with_its_reason(name: str) -> None:
    body, reason = FAULTS[name]
    verdict, server, judge = judged(always(body), attempts=2)
    assert verdict.status == "unjudged"
    assert verdict.reason == reason
    assert verdict.quality is None
    assert verdict.coefficient is None
    assert b'"quality"' not in msgspec.json.encode(verdict)
    assert verdict.fault is not None
    assert verdict.fault.blame in (Blame.validator, Blame.platform)
    assert verdict.explanation
    assert 1 <= len(server.bodies) <= 2
    if name in ("unauthorised", "no such model"):
        told = verdict.explanation + verdict.fault.what
        assert server.url in told
        assert f"asked for the model {server.bodies[0]['model']!r}" in told
        assert "(check the " in told
    if name == "truncated":
        budgets = [body["max_tokens"] for body in server.bodies]
        assert budgets == [1500, 3000]
        assert judge.meter.total().completion_tokens == 400  # cut-off replies were paid for


MENDED: dict[str, Callable[[], Any]] = {
    "null": lambda: completion(None),
    "html": lambda: web.Response(text="<html/>", content_type="text/html"),
    "500": lambda: no(500, "oops"),
    "429": lambda: no(429, "slow down"),
    "prose": lambda: completion("hm"),
    "out of bin": lambda: completion(json.dumps({**GOOD, "value": 1.0})),
    "misquoted": lambda: completion(TEXT.replace("sold by shop 772", "it was sold in Cebu")),
}


@pytest.mark.parametrize("name", MENDED)
def test_a_fault_that_passes_costs_a_try_and_no_verdict(name: str) -> None:
    verdict, server, _ = judged(always(MENDED[name], TEXT))
    assert verdict.quality == 0.7
    assert len(server.bodies) == 2
    told = server.bodies[1]["messages"][1]["content"]
    assert ("was refused" in told) == (name in ("null", "prose", "out of bin", "misquoted"))
    assert "Cebu" not in told  # a reply may quote the agent, so none of it is repeated


def test_a_storm_of_429_is_waited_out_as_long_as_the_server_asks() -> None:
    waits = Waits()
    storm = [lambda: no(429, "busy", **{"Retry-After": "7"})] * 3
    verdict, server, judge = judged(always(*storm, TEXT), waits=waits)
    assert verdict.quality == 0.7
    assert len(server.bodies) == 4
    assert sum(waits.asked) >= 21
    assert judge.meter.total().retries == 3
    verdict, _, _ = judged(always(lambda: no(429, "busy", **{"Retry-After": "100000"})))
    assert verdict.reason == "rate_limited"


def test_retries_of_a_batch_have_a_budget() -> None:
    runs = [msgspec.structs.replace(BASE, trajectory_id=f"t{n}") for n in range(60)]
    storm = always(lambda: no(503, "down"))
    with ModelServer(storm) as server, judge_at(server.url, attempts=50) as judge:
        verdicts = list(judge.verdicts(runs))
    assert all(verdict.status == "unjudged" for verdict in verdicts)
    assert len(server.bodies) < 60, "a breaker lets no batch hammer a dead server"


def test_a_slow_server_is_timed_out_and_a_dripping_one_too() -> None:
    async def never(_: int, __: dict[str, Any], ___: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return good()

    async def drips(_: int, __: dict[str, Any], request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response

    for handler in (never, drips):
        verdict, _, _ = judged(handler, attempts=1, timeout_s=0.3)
        assert verdict.reason == "timed_out"


def test_a_reset_connection_is_tried_again_elsewhere() -> None:
    async def reset(_: int, __: dict[str, Any], request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return good()

    with (
        ModelServer(reset) as broken,
        ModelServer(always(TEXT)) as whole,
        judge_at("http://127.0.0.1:9/v1", broken.url, whole.url) as judge,
    ):
        assert judge.verdict(BASE).quality == 0.7
    assert len(broken.bodies) == len(whole.bodies) == 1
    with judge_at("http://127.0.0.1:9/v1", attempts=1) as judge:
        assert judge.verdict(BASE).reason == "unreachable"


def test_a_pool_shares_the_work_and_names_who_answered() -> None:
    def answers(model: str) -> Handler:
        return always(completion(TEXT, model=model))

    with ModelServer(answers("a")) as one, ModelServer(answers("b")) as two:
        ends = (Endpoint(url=one.url, model="a"), Endpoint(url=two.url, model="b"))
        config = JudgeConfig(members=(Member(model="a", endpoints=ends),), concurrency=1)
        with LlmJudge(config) as judge:
            queries = [msgspec.structs.replace(BASE, query=f"scarf {n}") for n in range(6)]
            verdicts = list(judge.verdicts(queries))
    assert len(one.bodies) == len(two.bodies) == 3
    assert {verdict.opinions[0].model for verdict in verdicts} == {"a", "b"}
    assert len({verdict.judge for verdict in verdicts}) == 1


@pytest.mark.parametrize("refused", [("json_schema",), ("json_schema", "json_object")])
def test_an_endpoint_without_structured_output_is_asked_for_less(refused: tuple[str, ...]) -> None:
    async def picky(_: int, body: dict[str, Any], __: web.Request) -> web.StreamResponse:
        form = body.get("response_format", {}).get("type", "text")
        if form in refused:
            return no(400, f"response_format {form} is not supported")
        return web.json_response(completion(f"Sure!\n```json\n{TEXT}\n```"))

    with ModelServer(picky) as server, judge_at(server.url) as judge:
        assert judge.verdict(BASE).quality == 0.7
        again = msgspec.structs.replace(BASE, query="another")
        assert judge.verdict(again).quality == 0.7
    assert len(server.bodies) == len(refused) + 2, "it is asked for each form once"


def test_a_record_beyond_the_context_is_unjudged_and_nobody_is_asked() -> None:
    verdict, server, _ = judged(always(TEXT), context=2000)
    assert verdict.reason == "context_exceeded"
    assert verdict.fault is not None
    assert verdict.fault.blame is Blame.validator
    assert not server.bodies


def test_the_budget_of_a_thinking_model_and_its_field() -> None:
    thinking = f"<think>the value may be {{0.1}}</think>{TEXT}"
    fields = {"thinking_tokens": 8000, "budget_field": "max_completion_tokens"}
    extra = {"chat_template_kwargs": {"enable_thinking": True}}
    verdict, server, _ = judged(always(thinking), extra=extra, **fields)
    assert verdict.quality == 0.7
    assert server.bodies[0]["max_completion_tokens"] == 9500
    assert server.bodies[0]["chat_template_kwargs"] == {"enable_thinking": True}


def test_unknown_prices_and_counts_are_none_and_never_zero() -> None:
    _, _, judge = judged(always(TEXT))
    assert judge.meter.total().cost is None
    body = completion(TEXT)
    del body["usage"]
    verdict, _, judge = judged(always(body), prices={"judge-1": Price(input=1, output=1)})
    assert verdict.quality == 0.7
    assert verdict.opinions[0].cost is None
    total = judge.meter.total()
    assert (total.prompt_tokens, total.completion_tokens, total.cost) == (None, None, None)


def test_a_server_that_refuses_our_key_is_passed_over() -> None:
    with (
        ModelServer(always(TEXT)) as whole,
        ModelServer(always(lambda: no(401, "wrong key"))) as closed,
        judge_at(whole.url, closed.url) as judge,
    ):
        assert judge.verdict(BASE).quality == 0.7
    assert len(closed.bodies) == len(whole.bodies) == 1
    assert closed.keys == ["Bearer none"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        (
            {
                "date": "Sun, 29 Nov 2026 10:00:00 GMT",
                "retry-after": "Sun, 29 Nov 2026 10:01:30 GMT",
            },
            90.0,
        ),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_every_form_of_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
