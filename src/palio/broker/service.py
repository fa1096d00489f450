"""A request of a run is read within its time and share, carried out, and answered in one form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web

from palio.broker.keeping import Ticket
from palio.broker.refusals import RunOver
from palio.broker.routes import (
    INFERENCE_PATHS,
    Reply,
    call_proof,
    error_reply,
    failure_reply,
    read_reply,
    tool_reply,
)
from palio.broker.session import Session
from palio.broker.streaming import sse_events, wants_usage
from palio.broker.upstream import AsyncUpstream, ask_async
from palio.broker.wire import load_json
from palio.records import InputError, PalioError

LOG = logging.getLogger(__name__)
MAX_BODY = 8 * 1024 * 1024
"""Bytes of one request; a 1 M token conversation is about 4 MB."""
BODY_S = 30.0
"""Seconds for a whole body; 8 MB over loopback take 10 ms."""
INFERENCES = 8
"""Completions in flight a run: one run must not take all relay threads or upstream connections."""
BODIES = 4
"""Bodies being read a run, so that a run holds at most 32 MB of the broker's memory."""
SLOW_TOOLS = frozenset({"python_execute", "web_search"})
"""Tools that wait for a sandbox or a search engine: the broker's loop must not wait with them."""
REFUSAL_PAUSE_S = 0.02
"""What a call over the budget waits: a looping agent makes 50 of them a second, not 5,000."""


class Line:
    """One run at the broker: its session, and its fair share of the broker's one event loop.

    However many requests an agent has in flight, one of its tool calls is carried out a turn of
    the loop; the rest wait here and not in the loop's queue, before the calls of other runs.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._turn = asyncio.Lock()
        self._bodies = asyncio.Semaphore(BODIES)
        self._inferences = asyncio.Semaphore(INFERENCES)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the run's turn; others of the run wait, and other runs come in between.

        Where nothing else makes it wait, a connection with 50 calls in one packet would have all of
        them carried out before the loop looks at another run.
        """
        async with self._turn:
            yield
            await asyncio.sleep(0)

    async def body(self, request: web.BaseRequest) -> bytes:
        """The whole body.

        Raises:
            TimeoutError: it did not come within `BODY_S`.
            web.HTTPRequestEntityTooLarge: it is over `MAX_BODY`.
        """
        if not request.can_read_body:
            return b""
        async with self._bodies, asyncio.timeout(BODY_S):
            return await request.read()

    def inference(self) -> asyncio.Semaphore:
        """Held while a completion is in flight."""
        return self._inferences


class Service:
    """Carries out the requests of all runs; what was really done stands in `counts`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.counts = {"tool_calls": 0, "inferences": 0, "errors": 0}
        self._pool = pool

    async def answer(self, line: Line, path: str, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request of a run; `path` is what follows the run's base URL."""
        path = path.strip("/")
        session = line.session
        try:
            if path in INFERENCE_PATHS and request.method == "POST":
                return await self._infer(line, request)
            if path == "search" or path.startswith("search/"):
                return await self._call(line, path[7:], request)
        except (PalioError, RunOver) as error:
            self.counts["errors"] += 1
            return response(failure_reply(error))
        if request.method != "GET":
            return response(error_reply(404, "no such path", "not_found"))
        return response(read_reply(session, path))

    async def _call(self, line: Line, tool: str, request: web.BaseRequest) -> web.Response:
        self.counts["tool_calls"] += 1
        if request.method == "GET":
            arguments: Any = dict(request.query)
        else:
            text = (await line.body(request)).decode("utf-8", "replace")
            try:
                arguments = load_json(text)
            except InputError:
                arguments = text  # the tool tells the agent what is wrong with it
            if isinstance(arguments, dict):
                arguments = text
        proof = call_proof(request.headers)
        async with line.turn():
            if tool in SLOW_TOOLS:
                carry_out = partial(tool_reply, line.session, tool, arguments, *proof)
                reply = await asyncio.get_running_loop().run_in_executor(self._pool, carry_out)
            else:
                reply = tool_reply(line.session, tool, arguments, *proof)
            if line.session.flooding:
                await asyncio.sleep(REFUSAL_PAUSE_S)
        return response(reply)

    async def _infer(self, line: Line, request: web.BaseRequest) -> web.StreamResponse:
        self.counts["inferences"] += 1
        body = load_json(await line.body(request))
        async with line.inference():
            ticket = line.session.begin_inference(body)
            relayed = await self._relay(line.session, ticket)
        answer = line.session.finish_inference(ticket, relayed)
        if not body.get("stream"):
            return web.json_response(answer)
        return await _stream(request, answer, body)

    async def _relay(self, session: Session, ticket: Ticket) -> Any:
        upstream = session.upstream
        if isinstance(upstream, AsyncUpstream):
            return await ask_async(upstream, ticket.body)
        asked = asyncio.get_running_loop().run_in_executor(self._pool, session.ask_upstream, ticket)
        return await asked


async def shielded(
    service: Service, line: Line, path: str, request: web.BaseRequest
) -> web.StreamResponse:
    """`Service.answer`, with refusals of the HTTP layer itself in the same form as ours."""
    try:
        return await service.answer(line, path, request)
    except web.HTTPException as error:
        return response(error_reply(error.status, error.reason, "http"))
    except TimeoutError:
        refusal = response(error_reply(408, f"the body did not come in {BODY_S:g} s", "http"))
        refusal.force_close()
        return refusal
    except (ConnectionError, web.RequestPayloadError) as error:
        return response(error_reply(400, f"the request is broken: {error}", "http"))
    except Exception as error:
        LOG.exception("the broker failed on %s %s", request.method, request.rel_url.raw_path[-40:])
        return response(error_reply(500, f"the broker failed: {type(error).__name__}", "broker"))


def response(reply: Reply) -> web.Response:
    """An answer as aiohttp writes it."""
    return web.Response(
        status=reply.status,
        body=reply.body,
        headers=reply.headers,
        content_type="application/json",
    )


async def _stream(
    request: web.BaseRequest, answer: dict[str, Any], body: dict[str, Any]
) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    for event in sse_events(answer, include_usage=wants_usage(body)):
        await stream.write(event)
    await stream.write_eof()
    return stream
