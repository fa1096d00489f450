"""Agents reach the world and a model only here; which secret path a call comes in on is its run."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from palio import __version__
from palio.broker.routes import (
    CALL_ID_HEADER,
    INFERENCE_PATHS,
    Reply,
    error_reply,
    failure_reply,
    read_reply,
    tool_reply,
)
from palio.broker.session import RunOver, Session, Ticket
from palio.broker.upstream import HttpUpstream, ask
from palio.broker.wire import load_json
from palio.records import InputError, PalioError

LOG = logging.getLogger(__name__)
CLIENTS = logging.getLogger(f"{__name__}.clients")
"""What aiohttp says of broken requests; agents send them, so by default nobody is told."""
CLIENTS.addHandler(logging.NullHandler())
MAX_BODY = 8 * 1024 * 1024
"""Bytes of one request; a 1 M token conversation is about 4 MB."""
START_S = 30.0
RELAY_THREADS = 64
"""In-process model calls in flight; HTTP upstreams need no thread."""


class BrokerServer:
    """An HTTP server on loopback in a thread of its own, for many concurrent runs.

    Routes, below ``/run/SECRET``: GET and POST search/TOOL; POST inference/chat/completions and
    v1/chat/completions; GET tools, status and v1/models. Above it: GET /health.

    Tool calls are executed on the event loop (0.1 to 1 ms each), model calls never are, so a slow
    model does not hold up tools.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._port = port
        self._sessions: dict[str, Session] = {}
        self._counts = {"tool_calls": 0, "inferences": 0, "errors": 0}
        self._pool = ThreadPoolExecutor(RELAY_THREADS, thread_name_prefix="palio-relay")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Root URL of the running server, without a slash at the end."""
        return f"http://{self._host}:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether it serves now; a run during which it died is nobody's fault but the host's."""
        return self._thread is not None and self._thread.is_alive() and self._failure is None

    def start(self) -> Self:
        """Bind and serve; returns when the port is known. Starting twice does nothing more.

        Raises:
            OSError: the address cannot be bound.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="palio-broker", daemon=True
                )
                self._thread.start()
        if not self._ready.wait(START_S):
            raise OSError("the broker did not start in time")
        if self._failure is not None:
            raise OSError(f"the broker cannot serve: {self._failure}") from self._failure
        return self

    def stop(self) -> None:
        """Stop serving; requests in flight get up to a second."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is not None and loop is not None and stopping is not None and thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
            thread.join(timeout=10)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def register(self, session: Session) -> str:
        """The base URL under which the agent of `session` talks; only it may learn this URL."""
        self.start()
        secret = secrets.token_urlsafe(24)
        self._sessions[secret] = session
        return f"{self.url}/run/{secret}"

    def unregister(self, base_url: str) -> None:
        """Forget a run; later requests on its path get 404."""
        self._sessions.pop(base_url.rsplit("/", 1)[-1], None)

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            self._failure = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_typed_errors])
        app.router.add_get("/health", self._health)
        app.router.add_route("*", "/run/{secret}/{path:.*}", self._handle)
        runner = web.AppRunner(
            app, access_log=None, logger=CLIENTS, handle_signals=False, shutdown_timeout=1.0
        )
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port, backlog=1024)
        try:
            await site.start()
            self._port = int(runner.addresses[0][1])
            self._ready.set()
            await self._stopping.wait()
        finally:
            await runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        """Liveness and what was really done: green alone says nothing."""
        status = {"status": "ok", "version": __version__, "runs": len(self._sessions)}
        return web.json_response({**status, **self._counts})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.get(request.match_info["secret"])
        if session is None:
            return _response(error_reply(404, "no such run", "no_run"))
        path = request.match_info["path"].strip("/")
        try:
            if path in INFERENCE_PATHS and request.method == "POST":
                return await self._infer(session, request)
            if path == "search" or path.startswith("search/"):
                return await self._call(session, path[7:], request)
        except (PalioError, RunOver) as error:
            self._counts["errors"] += 1
            return _response(failure_reply(error))
        if request.method != "GET":
            return _response(error_reply(404, "no such path", "not_found"))
        return _response(read_reply(session, path))

    async def _call(self, session: Session, tool: str, request: web.Request) -> web.Response:
        self._counts["tool_calls"] += 1
        if request.method == "GET":
            arguments: Any = dict(request.query)
        else:
            text = (await request.read()).decode("utf-8", "replace")
            try:
                arguments = load_json(text)
            except InputError:
                arguments = text  # the tool tells the agent what is wrong with it
            if isinstance(arguments, dict):
                arguments = text
        call_id = request.headers.get(CALL_ID_HEADER, "")
        return _response(tool_reply(session, tool, arguments, call_id))

    async def _infer(self, session: Session, request: web.Request) -> web.StreamResponse:
        self._counts["inferences"] += 1
        body = load_json(await request.read())
        ticket = session.begin_inference(body)
        answer = session.finish_inference(ticket, await self._relay(session, ticket))
        if not body.get("stream"):
            return web.json_response(answer)
        return await _stream(request, answer)

    async def _relay(self, session: Session, ticket: Ticket) -> Any:
        upstream = session.upstream
        if isinstance(upstream, HttpUpstream):
            try:
                return await upstream.acomplete(ticket.body)
            except PalioError as error:
                return error
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, ask, upstream, ticket.body
        )


@web.middleware
async def _typed_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refusals of aiohttp itself (too large, bad path) in the same form as ours."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _response(error_reply(error.status, error.reason, "http"))
    except (ConnectionError, web.RequestPayloadError) as error:
        return _response(error_reply(400, f"the request is broken: {error}", "http"))
    except Exception as error:
        LOG.exception("the broker failed on %s %s", request.method, request.rel_url.raw_path[-40:])
        return _response(error_reply(500, f"the broker failed: {type(error).__name__}", "broker"))


def _response(reply: Reply) -> web.Response:
    return web.Response(
        status=reply.status,
        body=reply.body,
        headers=reply.headers,
        content_type="application/json",
    )


async def _stream(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    """A whole completion as server-sent events: the record needs whole answers anyway."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    choice = answer["choices"][0]
    delta = dict(choice["message"])
    calls = [{**call, "index": at} for at, call in enumerate(delta.get("tool_calls") or ())]
    if calls:
        delta["tool_calls"] = calls
    chunk = {**answer, "object": "chat.completion.chunk"}
    usage = chunk.pop("usage", None)
    last = {**chunk, "choices": [{"index": 0, "delta": {}}]}
    last["choices"][0]["finish_reason"] = choice.get("finish_reason") or "stop"
    chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": None}]
    if usage is not None:
        last["usage"] = usage
    for event in (chunk, last):
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
