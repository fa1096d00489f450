"""Tool calls through the broker over loopback HTTP, beside a bare aiohttp handler of equal body.

Both are driven by the same kept-alive client, so the difference is what the record costs.
"""

from __future__ import annotations

import asyncio
import http.client
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

from aiohttp import web

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.broker.limits import Limits
from palio.broker.server import BrokerServer
from palio.broker.session import Session
from palio.records import AgentRef, Problem
from palio.rollout import Shard, bulk, run_problem
from palio.sandbox.process import SubprocessDriver
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.world import COMPACT, FULL, World

LIMITS = Limits(calls=10**9, bytes=10**12, seconds=3600)


def run(quick: bool) -> list[dict[str, Any]]:
    """Rows for `make bench`."""
    calls = 500 if quick else 3000
    made = synthesise(compact_config(1))
    world = World.build(made.catalogue, FULL)
    rows = _http(world, made.problems, calls)
    return [*rows, _child(made, quick), _bulk(quick)]


def _http(world: World, problems: tuple[Problem, ...], calls: int) -> list[dict[str, Any]]:
    queries = [quote(problem.query) for problem in problems[:50]]

    def session() -> Session:
        return Session(AgentRef(name="bench"), problems[0], world, limits=LIMITS)

    sample = session().dispatch("find_product", {"q": problems[0].query}).result.encode()
    with BrokerServer() as server, _bare(sample) as bare:
        path = "/search/find_product?q="
        ours = _client(server.register(session()), path, queries)
        theirs = _client(bare, path, queries)
        for warm in (ours, theirs):
            _median(warm, 200)
        mine, peer = _median(ours, calls), _median(theirs, calls)
        many = [_client(server.register(session()), path, queries) for _ in range(8)]
        bares = [_client(bare, path, queries) for _ in range(8)]
        rate, bare_rate = _rate(many, calls // 4), _rate(bares, calls // 4)
    named = {"peer_name": "bare aiohttp handler, same body"}
    return [
        {
            "name": "tool call through the broker, p50",
            "palio": round(mine * 1000, 3),
            "peer": round(peer * 1000, 3),
            "unit": "ms",
            "target": "<= 2 ms",
            **named,
        },
        {
            "name": "tool calls from 8 agents at once",
            "palio": round(rate),
            "peer": round(bare_rate),
            "unit": "calls/s",
            "target": None,
            **named,
        },
    ]


def _child(made: Any, quick: bool) -> dict[str, Any]:
    """One agent run in a fresh process, against an empty interpreter started the same way."""
    import subprocess
    import sys

    world = World.build(made.catalogue, COMPACT)
    spec = find_agent("careful")
    count = 10 if quick else 40
    with SubprocessDriver() as driver:
        go = partial(run_problem, spec, driver=driver, upstream=ScriptedUpstream())
        go(made.problems[0], world)
        ours = _median(lambda at: go(made.problems[at], world), count)
    bare = [sys.executable, "-I", "-c", "import json, http.client"]
    theirs = _median(lambda _: subprocess.run(bare, check=True), count)
    return {
        "name": "one whole run in a fresh process, p50",
        "palio": round(ours * 1000, 1),
        "peer": round(theirs * 1000, 1),
        "peer_name": "python -I -c 'import json, http.client'",
        "unit": "ms",
        "target": None,
    }


def _bulk(quick: bool) -> dict[str, Any]:
    """Inline runs in two worker processes, synthesis and process start included."""
    specs = tuple(find_agent(name) for name in ("careful", "terse", "sloppy", "hasty"))
    shards = [
        Shard(f"compact-{seed}", partial(make_world, seed), specs, ScriptedUpstream)
        for seed in range(2 if quick else 10)
    ]
    with TemporaryDirectory() as folder:
        report = bulk(shards, Path(folder), workers=2)
    return {
        "name": f"bulk rollouts, 2 processes ({report.trajectories:,} runs)",
        "palio": round(report.trajectories / report.seconds),
        "peer": None,
        "peer_name": "",
        "unit": "trajectories/s",
        "target": ">= 150 trajectories/s",
    }


def make_world(seed: int) -> tuple[World, tuple[Problem, ...]]:
    """A compact world, made in the worker."""
    made = synthesise(compact_config(seed))
    return World.build(made.catalogue, COMPACT), made.problems


@contextmanager
def _bare(body: bytes) -> Iterator[str]:
    """An aiohttp server whose one handler returns `body`."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/search/find_product", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _client(base: str, path: str, queries: list[str]) -> Callable[[int], None]:
    """A caller with a connection of its own: call(n) makes the n-th request."""
    parts = urlsplit(base)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)

    def call(at: int) -> None:
        connection.request("GET", parts.path + path + queries[at % len(queries)])
        reply = connection.getresponse()
        if reply.status != 200 or not reply.read():
            raise RuntimeError(f"the server answered {reply.status}")

    return call


def _median(call: Callable[[int], Any], count: int) -> float:
    times = []
    for at in range(count):
        started = time.perf_counter()
        call(at)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _rate(clients: list[Callable[[int], None]], each: int) -> float:
    def drive(call: Callable[[int], None]) -> None:
        for at in range(each):
            call(at)

    started = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(drive, clients))
    return len(clients) * each / (time.perf_counter() - started)
