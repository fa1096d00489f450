"""Agents reach the world and a model only here; which secret path a call comes in on is its run."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from aiohttp import web

from palio import __version__
from palio.broker.door import SERVER_OPTIONS, Descriptors, Door, request_factory
from palio.broker.routes import error_reply
from palio.broker.service import Line, Service, response, shielded
from palio.broker.session import Session

CLIENTS = logging.getLogger(f"{__name__}.clients")
"""What aiohttp says of broken requests; agents send them, so by default nobody is told."""
CLIENTS.addHandler(logging.NullHandler())
START_S = 30.0
RELAY_THREADS = 64
"""In-process model calls in flight; HTTP upstreams need no thread."""


class Served:
    """A run that is served on a socket of its own; `close` ends that."""

    def __init__(self, doors: set[Door]) -> None:
        self._doors = doors
        self._opened = threading.Event()
        self._door: Door | None = None

    def open(self, door: Door) -> None:
        """The broker's loop has opened the door."""
        self._door = door
        self._doors.add(door)
        self._opened.set()

    def close(self) -> None:
        """Stop serving; when this returns no request of the run is carried out any more."""
        self._opened.wait(START_S)
        if self._door is not None:
            self._door.close()
            self._doors.discard(self._door)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BrokerServer:
    """An HTTP server on loopback in a thread of its own, for many concurrent runs.

    Routes, below ``/run/SECRET``: GET and POST search/TOOL; POST inference/chat/completions and
    v1/chat/completions; GET tools, status and v1/models. Above it: GET /health. A run that has a
    listening socket of its own (`serve`) has the same routes at the root of that socket.

    Tool calls are executed on the event loop (0.1 to 1 ms each), model calls never are, so a slow
    model does not hold up tools.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._port = port
        self._lines: dict[str, Line] = {}
        self._doors: set[Door] = set()
        self._descriptors = Descriptors()
        self._pool = ThreadPoolExecutor(RELAY_THREADS, thread_name_prefix="palio-relay")
        self._service = Service(self._pool)
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

    def __exit__(self, *_: object) -> None:
        self.stop()

    def register(self, session: Session) -> str:
        """The base URL under which the agent of `session` talks; only it may learn this URL."""
        self.start()
        secret = secrets.token_urlsafe(24)
        self._lines[secret] = Line(session)
        return f"{self.url}/run/{secret}"

    def unregister(self, base_url: str) -> None:
        """Forget a run; later requests on its path get 404."""
        self._lines.pop(base_url.rsplit("/", 1)[-1], None)

    def serve(self, session: Session, listening: socket.socket) -> Served:
        """Adopt a listening socket: every request that comes in on it belongs to `session`.

        The socket may live in another network namespace: the guest binds it there and hands it
        over (SCM_RIGHTS). The routes are those of a run, at the root path. The broker owns the
        socket from here on; closing the handle closes it and every connection on it.

        Raises:
            OSError: the broker does not run, or the socket does not listen.
        """
        self.start()
        if not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError("the socket does not listen")
        loop = self._loop
        if loop is None or not self.alive:
            raise OSError("the broker does not serve any more")
        served = Served(self._doors)
        line = Line(session)
        loop.call_soon_threadsafe(
            lambda: served.open(
                Door(listening, line, self._service, loop, self._descriptors, CLIENTS)
            )
        )
        return served

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            self._failure = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = web.Server(
            self._handle,
            request_factory=request_factory(self._loop),
            logger=CLIENTS,
            **SERVER_OPTIONS,
        )
        listening = await self._loop.create_server(server, self._host, self._port, backlog=1024)
        try:
            self._port = int(listening.sockets[0].getsockname()[1])
            self._ready.set()
            await self._stopping.wait()
        finally:
            listening.close()
            await asyncio.gather(*(door.end() for door in list(self._doors)))
            await server.shutdown(1.0)

    async def _health(self) -> web.Response:
        """Liveness and what was really done: green alone says nothing."""
        runs = len(self._lines) + len(self._doors)
        status = {"status": "ok", "version": __version__, "runs": runs}
        return web.json_response({**status, **self._service.counts})

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health" and request.method == "GET":
            return await self._health()
        _, root, secret, path = [*request.path.split("/", 3), "", "", ""][:4]
        if root != "run":
            return response(error_reply(404, "no such path", "not_found"))
        line = self._lines.get(secret)
        if line is None:
            return response(error_reply(404, "no such run", "no_run"))
        return await shielded(self._service, line, path, request)
