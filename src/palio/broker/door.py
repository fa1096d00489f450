"""One run's own listening socket: whoever comes in on it is that run, and can hurt no other."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from palio.broker.service import MAX_BODY, Line, Service, shielded

CONNECTIONS = 64
"""Open connections a run; further ones wait in the kernel's backlog until one is closed."""
SURE = 8
"""Connections that a run always gets; more only while descriptors are plenty."""
IDLE_S = 30.0
"""Seconds until a connection without a complete request head is closed: slow-loris, half-open."""
CLOSE_S = 5.0
SERVER_OPTIONS: dict[str, Any] = {
    "keepalive_timeout": IDLE_S,
    "lingering_time": 1.0,
    "access_log": None,
}


def request_factory(loop: asyncio.AbstractEventLoop) -> Callable[..., web.BaseRequest]:
    """Makes requests whose bodies are capped at `MAX_BODY`."""

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY
        )

    return make


class Descriptors:
    """How many connections all doors hold: many runs at their caps must not use up the process's.

    Half of them are for connections beyond `SURE` a run; files, pipes and model servers need some.
    """

    def __init__(self) -> None:
        self.open = 0
        self.plenty = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    @property
    def scarce(self) -> bool:
        """Whether runs with `SURE` connections have to wait."""
        return self.open >= self.plenty


class _Counted(web.Server):
    """Tells when a connection is gone."""

    def __init__(self, handler: Any, gone: Callable[[], None], **options: Any) -> None:
        super().__init__(handler, **options)
        self._gone = gone
        self.open = 0

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        self.open += 1
        super().connection_made(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self.open -= 1
        self._gone()


class Door:
    """Serves one run on a socket that listens already, e.g. inside another network namespace.

    Everything but `close` runs on the broker's event loop.

    Args:
        listening: a listening stream socket; the door owns it from here on.
        line: the run.
        service: what carries out its requests.
        loop: the broker's event loop.
        descriptors: what all doors share.
        logger: where aiohttp says what it thinks of broken requests.
    """

    def __init__(
        self,
        listening: socket.socket,
        line: Line,
        service: Service,
        loop: asyncio.AbstractEventLoop,
        descriptors: Descriptors,
        logger: Any,
    ) -> None:
        listening.setblocking(False)
        self._descriptors = descriptors
        self._socket = listening
        self._loop = loop
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._closed = threading.Event()

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await shielded(service, line, request.path, request)

        self._server = _Counted(
            handle,
            self._gone,
            request_factory=request_factory(loop),
            loop=loop,
            logger=logger,
            **SERVER_OPTIONS,
        )
        self._accepting = loop.create_task(self._accept(), name="palio-door")

    def _gone(self) -> None:
        self._descriptors.open -= 1
        self._slots.release()

    async def _accept(self) -> None:
        while True:
            await self._slots.acquire()
            try:
                while self._server.open >= SURE and self._descriptors.scarce:
                    await asyncio.sleep(0.02)
                connection, _ = await self._loop.sock_accept(self._socket)
            except OSError:
                # No descriptors left, or the peer has gone already: neither ends the run.
                self._slots.release()
                await asyncio.sleep(0.05)
                continue
            except asyncio.CancelledError:
                self._slots.release()
                raise
            self._descriptors.open += 1
            try:
                await self._loop.connect_accepted_socket(self._server, connection)
            except OSError:
                connection.close()
                self._gone()

    def close(self) -> None:
        """Serve no more; when this returns no request of the run is carried out. Any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is gone, and all it served with it
            self._loop.call_soon_threadsafe(self._start_ending)
            self._closed.wait(CLOSE_S)

    def _start_ending(self) -> None:
        self._ending = self._loop.create_task(self._end_and_say())  # the loop's own hold is weak

    async def _end_and_say(self) -> None:
        try:
            await self.end()
        finally:
            self._closed.set()

    async def end(self) -> None:
        """The same on the loop: stop accepting, cut every connection, wait for handlers."""
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.close()
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._server.shutdown(0.1)
