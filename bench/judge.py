"""The evidence judge on one core, and the LLM judge beside a bare loop of the official client.

The server answers each request after a fixed time, from a process of its own. Both clients send the
same prompts with the same number in flight; ours also renders the records, reads the answers, looks
them up in the record and builds verdicts.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import msgspec
from aiohttp import web

from bench.scoring import AGENTS, per_second, rollout
from palio.judging import EvidenceJudge
from palio.judging.llm import Endpoint, JudgeConfig, LlmJudge, Member
from palio.judging.llm.document import document, packaged_prompt
from palio.records import Trajectory
from palio.world import FULL, World
from palio.world.synthesis import full_config, synthesise

MODEL = "judge"
CONCURRENCY = 32
LATENCY = 1.0
ANSWER = json.dumps(
    {
        "gates": [
            {"gate": 1, "passed": True, "step": 0, "quote": "", "data": []},
            {"gate": 2, "passed": False, "step": None, "quote": "", "data": []},
        ],
        "value": 0.3,
        "explanation": "nothing of the results is referred to",
    }
)


def run(quick: bool) -> list[dict[str, Any]]:
    runs = rollouts(24 if quick else 90)
    judge = EvidenceJudge()
    speed = per_second(
        lambda: [judge.verdict(one) for one in runs], len(runs), 0.3 if quick else 2.0
    )
    rounds, waves = (1, 3) if quick else (3, 8)
    size = CONCURRENCY * waves
    with_thinking = [one for one in runs if any(e.completion for e in one.inferences)]
    batch = [
        msgspec.structs.replace(with_thinking[n % len(with_thinking)], query=f"{n}")
        for n in range(size)
    ]
    with served() as url:
        asyncio.run(bare(url, batch[:CONCURRENCY]))  # connections of the server, imports of ours
        pairs = [(ours(url, batch), asyncio.run(bare(url, batch))) for _ in range(rounds)]
    mine, theirs = (median(column) for column in zip(*pairs, strict=True))
    ideal = waves * LATENCY
    rows: list[dict[str, Any]] = [
        {"name": "evidence judge, one core", "palio": speed, "unit": "trajectories/s",
         "target": ">= 3000", "peer": None, "peer_name": ""},
        {"name": f"LLM judge, {CONCURRENCY} in flight, time beyond a bare client loop",
         "palio": 100 * (mine / theirs - 1), "unit": "%", "target": "<= 5",
         "peer": None, "peer_name": ""},
        {"name": f"LLM judge, {CONCURRENCY} in flight, server of {LATENCY:g} s an answer",
         "palio": size / mine, "unit": "verdicts/s", "target": f">= {0.9 * size / ideal:.1f}",
         "peer": size / theirs, "peer_name": "bare AsyncOpenAI and gather"},
    ]  # fmt: skip
    return rows


def rollouts(problems: int) -> list[Trajectory]:
    made = synthesise(full_config(11, products=8 * problems, problems=problems))
    world = World.build(made.catalogue, FULL)
    return [rollout(name, problem, world) for name in AGENTS for problem in made.problems]


def ours(url: str, runs: list[Trajectory]) -> float:
    """Seconds for verdicts on all runs, from the records on."""
    member = Member(model=MODEL, endpoints=(Endpoint(url=url),))
    config = JudgeConfig(members=(member,), concurrency=CONCURRENCY)
    with LlmJudge(config) as judge:
        start = time.perf_counter()
        verdicts = list(judge.verdicts(runs))
        seconds = time.perf_counter() - start
    assert all(one.status == "judged" for one in verdicts), verdicts[0].explanation
    return seconds


async def bare(url: str, runs: list[Trajectory]) -> float:
    """Seconds for the same requests and nothing else; prompts are rendered beforehand."""
    from openai import AsyncOpenAI

    prompt = packaged_prompt()
    texts = [document(one) for one in runs]
    form = {"name": "verdict", "strict": True, "schema": prompt.schema}
    seats = asyncio.Semaphore(CONCURRENCY)

    async def ask(client: AsyncOpenAI, text: str) -> Any:
        async with seats:
            return await client.chat.completions.create(
                model=MODEL,
                messages=[
                    {"role": "system", "content": prompt.system},
                    {"role": "user", "content": text},
                ],
                max_tokens=1500,
                temperature=0.0,
                seed=0,
                response_format={"type": "json_schema", "json_schema": form},  # type: ignore[arg-type,typeddict-item]
            )

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        start = time.perf_counter()
        await asyncio.gather(*(ask(client, text) for text in texts))
        return time.perf_counter() - start


@contextmanager
def served() -> Iterator[str]:
    """A model server of fixed latency in a process of its own."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, LATENCY), daemon=True)
    process.start()
    try:
        if not mine.poll(60):
            raise RuntimeError("the server of the benchmark did not start within 60 s")
        yield f"http://127.0.0.1:{mine.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def serve(pipe: Connection, latency: float) -> None:
    body = {
        "id": "c", "object": "chat.completion", "created": 0, "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": ANSWER}}],
    }  # fmt: skip

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(latency)
        return web.json_response(body)

    async def main(ready: Callable[[int], None]) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main(pipe.send))
