"""A small model server over real sockets that misbehaves on request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.broker.conftest import completion

GOOD = json.dumps(completion("hello")).encode()


class ModelServer:
    """Answers each request by the next behaviour of `plan`; the last one repeats.

    A behaviour is "good", "silent", "drop", a number (status), ("slow", seconds) or bytes (a body
    with status 200), (status, bytes), "cut" (an answer that breaks off), or ("together", number):
    an answer when so many requests have come.
    """

    def __init__(self, *plan: Any) -> None:
        self.plan = list(plan)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        behaviour = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        if behaviour == "silent":
            await asyncio.sleep(30)
        if behaviour == "drop":
            assert request.transport is not None
            request.transport.close()
        if isinstance(behaviour, tuple) and behaviour[0] == "together":
            while len(self.bodies) < behaviour[1]:
                await asyncio.sleep(0.01)
            behaviour = "good"
        if behaviour == "cut":
            return await self._cut(request)
        if isinstance(behaviour, tuple) and isinstance(behaviour[0], int):
            return web.Response(status=behaviour[0], body=behaviour[1])
        if isinstance(behaviour, tuple):
            await asyncio.sleep(behaviour[1])
        if isinstance(behaviour, int):
            headers = {"Retry-After": "0.25"} if behaviour == 429 else {}
            return web.Response(status=behaviour, text="no", headers=headers)
        body = behaviour if isinstance(behaviour, bytes) else GOOD
        return web.Response(body=body, content_type="application/json")

    @staticmethod
    async def _cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(GOOD))})
        await response.prepare(request)
        await response.write(GOOD[:20])
        assert request.transport is not None
        request.transport.close()
        return response

    @contextmanager
    def running(self) -> Iterator[ModelServer]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        runner = asyncio.run_coroutine_threadsafe(self._start(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner
