"""A real OpenAI-compatible server on a loopback socket; a test decides its replies."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

Handler = Callable[[int, dict[str, Any], web.Request], Awaitable[web.StreamResponse]]
GATES: tuple[dict[str, Any], ...] = (
    {"gate": 1, "passed": True, "step": 3, "quote": "4821 costs 180.5", "data": []},
    {"gate": 2, "passed": True, "step": 3, "quote": "4821 costs 180.5", "data": ["180.5"]},
    {"gate": 3, "passed": True, "step": 3, "quote": "sold by shop 772", "data": ["772"]},
    {"gate": 4, "passed": False, "step": None, "quote": "", "data": []},
)
"""What a good judge answers on the base run `one_candidate`."""
GOOD = {"gates": list(GATES), "value": 0.7, "explanation": "names a price and a shop"}


def completion(content: str | None, **fields: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    choice = {
        "index": 0,
        "finish_reason": fields.pop("finish_reason", "stop"),
        "message": {"role": "assistant", "content": content},
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
    plain = {"id": "c", "object": "chat.completion", "created": 0, "model": "judge-1"}
    return {**plain, "choices": [choice], "usage": usage, **fields}


def good(**fields: Any) -> web.Response:
    return web.json_response(completion(json.dumps(GOOD), **fields))


def refusal(status: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


def always(*bodies: Any) -> Handler:
    """Reply n is body n, the last one for ever; a text is the content, None is null."""

    async def handle(n: int, _: dict[str, Any], __: web.Request) -> web.StreamResponse:
        body = bodies[min(n, len(bodies) - 1)]
        if callable(body):
            body = body()
        if isinstance(body, web.StreamResponse):
            return body
        return web.json_response(body if isinstance(body, dict) else completion(body))

    return handle


class ModelServer:
    """Runs in a thread of its own.

    Attributes:
        bodies: requests received, in order.
        most: requests that were in flight at once.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.now = self.most = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        n = len(self.bodies)
        self.bodies.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self._handler(n, body, request)
        finally:
            self.now -= 1
