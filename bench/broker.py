"""Tool calls through the broker beside a bare aiohttp handler, and its journal beside SQLite.

Both servers are driven by the same kept-alive client, so the difference is what the record costs.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

from aiohttp import web

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.broker.chain import Chain
from palio.broker.journal import BodyJournal
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
    written = journal_rows(16 if quick else 96)
    return [*rows, *written, _child(made, quick), _bulk(quick)]


def _http(world: World, problems: tuple[Problem, ...], calls: int) -> list[dict[str, Any]]:
    queries = [quote(problem.query) for problem in problems[:50]]
    path = "/search/find_product?q="

    def session(journal: BodyJournal | None = None) -> Session:
        kept = journal.run() if journal is not None else None
        return Session(AgentRef(name="bench"), problems[0], world, limits=LIMITS, journal=kept)

    alone = session()
    sample = alone.dispatch("find_product", {"q": problems[0].query}).result.encode()
    direct = _median(lambda at: alone.dispatch("find_product", {"q": problems[at % 50].query}), 500)
    with (
        TemporaryDirectory() as folder,
        BodyJournal(Path(folder)) as journal,
        BrokerServer() as server,
        _bare(sample) as bare,
    ):
        sock = socket.create_server(("127.0.0.1", 0))
        door = f"http://127.0.0.1:{sock.getsockname()[1]}"
        served = server.serve(session(journal), sock)
        ours = _client(door, path, queries)
        plain = _client(server.register(session()), path, queries)
        theirs = _client(bare, path, queries)
        for warm in (ours, plain, theirs):
            _median(warm, 200)
        mine, unkept, peer = (_median(call, calls) for call in (ours, plain, theirs))
        many = [_client(server.register(session(journal)), path, queries) for _ in range(8)]
        bares = [_client(bare, path, queries) for _ in range(8)]
        rate, bare_rate = _rate(many, calls // 4), _rate(bares, calls // 4)
        served.close()
    named = {"peer_name": "bare aiohttp handler, same body"}
    return [
        _row("tool call through a run's own socket, journal on, p50", mine, peer, named, "<= 2 ms"),
        _row("the same without the journal, p50", unkept, peer, named, None),
        {
            "name": "what the broker adds to the tool itself, p50",
            "palio": round((mine - direct) * 1000, 3),
            "peer": round(peer * 1000, 3),
            "unit": "ms",
            "target": "<= 1.5 ms",
            **named,
        },
        {
            "name": "tool calls from 8 agents at once, journal on",
            "palio": round(rate),
            "peer": round(bare_rate),
            "unit": "calls/s",
            "target": ">= 2,000 calls/s",
            **named,
        },
    ]


def _row(
    name: str, mine: float, peer: float, named: dict[str, str], target: str | None
) -> dict[str, Any]:
    times = {"palio": round(mine * 1000, 3), "peer": round(peer * 1000, 3)}
    return {"name": name, **times, "unit": "ms", "target": target, **named}


def journal_rows(megabytes: int) -> list[dict[str, Any]]:
    """Entries of 4 KB from 8 threads, each thread waiting for the disk after every 64 of them.

    Source of the size: a search result in the full world. The peer writes the same entries in the
    same groups to SQLite (WAL, synchronous=FULL), one transaction a group.
    """
    payload = json.dumps({"kind": "result", "text": "x" * 4000}).encode()
    groups = megabytes * 1_000_000 // (len(payload) * 64 * 8)
    with TemporaryDirectory(dir=".") as folder:
        with Chain(Path(folder) / "journal") as chain:
            ours = _written(lambda: _chain_group(chain, payload), groups)
        path = Path(folder) / "peer.db"
        lock = threading.Lock()
        database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        with closing(database):
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, payload BLOB)")
            theirs = _written(lambda: _sqlite_group(database, lock, payload), groups)
    size = groups * 8 * 64 * len(payload) / 1e6
    return [
        {
            "name": "record written, hash-chained, group fsync, 8 writers",
            "palio": round(size / ours, 1),
            "peer": round(size / theirs, 1),
            "peer_name": "SQLite WAL, synchronous=FULL, no chain",
            "unit": "MB/s",
            "target": ">= 50 MB/s",
        }
    ]


def _written(group: Callable[[], None], groups: int) -> float:
    def write(_: int) -> None:
        for _ in range(groups):
            group()

    started = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    return time.perf_counter() - started


def _chain_group(chain: Chain, payload: bytes) -> None:
    for _ in range(64):
        chain.append(payload)
    chain.sync()


def _sqlite_group(database: sqlite3.Connection, lock: threading.Lock, payload: bytes) -> None:
    with lock:
        database.execute("BEGIN")
        rows = [(payload,)] * 64
        database.executemany("INSERT INTO entry (payload) VALUES (?)", rows)
        database.execute("COMMIT")


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
