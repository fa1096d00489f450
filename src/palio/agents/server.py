"""Any upstream becomes an OpenAI-compatible model server; the `openai` client works unchanged.

Routes: POST /v1/chat/completions (whole, or as server-sent events with "stream": true),
GET /v1/models, GET /v1/models/{id}, GET /health. An upstream that streams is streamed token by
token; of another one a stream begins when the answer is whole.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import web

from palio.broker.hangup import asked_by
from palio.broker.streaming import DONE, StreamingUpstream, sse_event, sse_events, wants_usage
from palio.broker.upstream import RejectedError, Upstream
from palio.broker.wire import clean_value
from palio.records import ConfigError, FaultCode, PalioError, UpstreamError

T = TypeVar("T")
LOG = logging.getLogger(__name__)
CLIENTS = logging.getLogger(f"{__name__}.clients")
"""What aiohttp says of clients' broken requests; by default nobody is told."""
CLIENTS.addHandler(logging.NullHandler())
BODY_LIMIT = 64 * 1024 * 1024
START_S = 10.0
AT_ONCE = 512
"""Requests that an upstream is asked at once, each by a thread that waits; more wait their turn.
asyncio's own threads are six on two cores, and an engine steps 64 conversations."""
_STATUS = {
    FaultCode.upstream_rate_limited: 429,
    FaultCode.upstream_timed_out: 504,
    FaultCode.upstream_unreachable: 503,
    FaultCode.upstream_garbage: 502,
}


class RequestError(Exception):
    """A refusal in OpenAI's form."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.body = {
            "error": {"message": message, "type": kind, "param": None, "code": code or None}
        }


def make_app(
    upstream: Upstream, *, models: tuple[str, ...] | None = None, api_key: str = ""
) -> web.Application:
    """The server's application.

    Args:
        upstream: who answers; called from worker threads, up to `AT_ONCE`. One that can stream
            (`StreamingUpstream`) is asked for a stream where the client asks for one. Where it has
            an `identity`, digests of weights, tokenizer and template, the list of models tells it;
            where it is `alive` no more, its health is told as that.
        models: names to list and to accept; None: the upstream's own `models`, else any name.
        api_key: when set, requests must carry it as a bearer token.
    """
    known = models if models is not None else tuple(getattr(upstream, "models", ()))
    routes = Routes(upstream, known, api_key)
    app = web.Application(client_max_size=BODY_LIMIT, middlewares=[openai_errors])
    app.router.add_post("/v1/chat/completions", routes.chat)
    app.router.add_get("/v1/models", routes.list_models)
    app.router.add_get("/v1/models/{model}", routes.show_model)
    app.router.add_get("/health", routes.health)
    app.on_cleanup.append(routes.close)
    return app


@web.middleware
async def openai_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Every refusal, ours or aiohttp's, and every failure as an OpenAI error body."""
    try:
        response: web.StreamResponse = await handler(request)
    except Exception as error:  # noqa: BLE001 - whoever asks must hear of it
        refusal = as_refusal(request, error)
        return web.json_response(refusal.body, status=refusal.status)
    return response


def as_refusal(request: web.Request, error: Exception) -> RequestError:
    """What a client is told of whatever went wrong with its request; bugs are logged."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RejectedError):
        code = "context_length_exceeded" if "context length" in str(error) else ""
        return RequestError(400, str(error), code)
    if isinstance(error, UpstreamError):
        return RequestError(_STATUS.get(FaultCode(error.code), 500), str(error))
    if isinstance(error, PalioError):
        return RequestError(400, str(error))
    if isinstance(error, web.HTTPException):
        return RequestError(error.status, error.reason)
    if isinstance(error, ConnectionError | web.RequestPayloadError):
        return RequestError(400, f"broken request: {error}")
    LOG.error("a request to %s could not be answered", request.path, exc_info=error)
    return RequestError(500, f"the server broke: {type(error).__name__}: {error}"[:300])


class Routes:
    """The handlers of one server."""

    def __init__(self, upstream: Upstream, models: tuple[str, ...], api_key: str) -> None:
        self.upstream = upstream
        self.models = models
        self.api_key = api_key
        self.served = 0
        self.told = dict(getattr(upstream, "identity", {}))
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="palio-asks")

    async def health(self, _: web.Request) -> web.Response:
        """Whether the model answers (else 503), and how many completions were served."""
        alive = bool(getattr(self.upstream, "alive", True))
        told = {"status": "ok" if alive else "broken", "completions": self.served}
        return web.json_response(told, status=200 if alive else 503)

    async def close(self, _: web.Application) -> None:
        """Take no more requests; those in flight are the upstream's to end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def list_models(self, request: web.Request) -> web.Response:
        """The models in OpenAI's list form."""
        self._check_key(request)
        data = [_model(name, self.told) for name in self.models]
        return web.json_response({"object": "list", "data": data})

    async def show_model(self, request: web.Request) -> web.Response:
        """One model."""
        self._check_key(request)
        self._check_model(request.match_info["model"])
        return web.json_response(_model(request.match_info["model"], self.told))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One chat completion, streamed when asked for."""
        self._check_key(request)
        body = await _json_body(request)
        self._check_model(str(body.get("model", "")))
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise RequestError(400, "`messages` must be a non-empty list")
        if body.get("stream") not in (None, True, False):
            raise RequestError(400, "`stream` must be true or false")
        if body.get("stream") and isinstance(self.upstream, StreamingUpstream):
            return await self._streamed(request, body, self.upstream)
        gone = threading.Event()
        try:
            answer = await self._in_thread(gone, self.upstream.complete, body)
        finally:
            gone.set()  # nobody waits any more: it is answered, or its client has hung up
        self.served += 1
        if not body.get("stream"):
            return web.json_response(answer)
        response = await _begun(request)
        for event in sse_events(answer, include_usage=wants_usage(body)):
            await response.write(event)
        await response.write_eof()
        return response

    async def _streamed(
        self, request: web.Request, body: dict[str, Any], upstream: StreamingUpstream
    ) -> web.StreamResponse:
        """Events as they are told.

        What fails before the first is a refusal like any other; what fails later is the last event,
        and no end mark says that the answer is whole.
        """
        loop = asyncio.get_running_loop()
        gone, events = threading.Event(), asyncio.Queue[bytes | Exception]()

        def put(event: bytes | Exception) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        asked = self._in_thread(gone, _tell_all, upstream, body, put)
        try:
            event = await events.get()
            if isinstance(event, Exception):
                raise event
            response = await _begun(request)
            while isinstance(event, bytes) and event != DONE:
                await response.write(event)
                event = await events.get()
            if isinstance(event, Exception):
                event = sse_event(as_refusal(request, event).body)
            else:
                self.served += 1
            await response.write(event)
            await response.write_eof()
            return response
        finally:
            gone.set()
            asked.cancel()  # its failure stands among the events

    def _in_thread(
        self, gone: threading.Event, ask: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """What a client asks for, who has hung up when `gone` is set, in a thread of its own."""

        def asked() -> T:
            with asked_by(gone):
                return ask(*args)

        return asyncio.get_running_loop().run_in_executor(self._threads, asked)

    def _check_key(self, request: web.Request) -> None:
        # bytes that are no UTF-8 are surrogates here, as they are in a key from the environment
        given, wanted = (
            text.encode("utf-8", "surrogateescape")
            for text in (request.headers.get("Authorization", ""), f"Bearer {self.api_key}")
        )
        if self.api_key and not hmac.compare_digest(given, wanted):
            raise RequestError(401, "wrong or missing API key", "invalid_api_key")

    def _check_model(self, name: str) -> None:
        if self.models and name not in self.models:
            raise RequestError(
                404,
                f"the model {name!r} does not exist; known: {', '.join(self.models)}",
                "model_not_found",
            )


async def _json_body(request: web.Request) -> dict[str, Any]:
    data = await request.read()
    try:
        body = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    halves = b"\\ud" in data or b"\\uD" in data  # maybe of a pair, which no tokenizer takes
    found: dict[str, Any] = clean_value(body) if halves else body
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


async def _begun(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    response.headers["Cache-Control"] = "no-cache"
    await response.prepare(request)
    return response


def _tell_all(
    upstream: StreamingUpstream, body: dict[str, Any], put: Callable[[bytes | Exception], None]
) -> None:
    """In a thread of its own: all events of an answer; the last is the end mark or a failure."""
    try:
        upstream.stream(body, lambda chunk: put(sse_event(chunk)))
    except Exception as error:  # noqa: BLE001 - whoever asks must hear of it
        put(error)
    else:
        put(DONE)


def _model(name: str, told: Mapping[str, str]) -> dict[str, Any]:
    """A model in OpenAI's form; `palio` holds digests of weights, tokenizer and template."""
    more = {"palio": dict(told)} if told else {}
    return {"id": name, "object": "model", "created": 0, "owned_by": "palio", **more}


class ModelServer:
    """A model server in a thread of its own; use it as a context manager.

    Args:
        port: 0 picks a free one; `url` tells it.

    Raises:
        ConfigError: on entering, when the address cannot be bound.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        models: tuple[str, ...] | None = None,
        api_key: str = "",
    ) -> None:
        self.app = make_app(upstream, models=models, api_key=api_key)
        self.host = host
        self.port = port
        self._ready = threading.Event()
        self._failure: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="palio-model-server", daemon=True)

    @property
    def url(self) -> str:
        """Base URL of the API, ending in /v1."""
        return f"http://{self.host}:{self.port}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        self._ready.wait(START_S)
        if self._failure is not None or not self._ready.is_set():
            raise ConfigError(
                f"cannot serve on {self.host}:{self.port}: {self._failure or 'no answer'}",
                remedy="choose another port",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and wait for the thread."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    def wait(self) -> None:
        """Block until the server stops."""
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(
            self.app,
            access_log=None,
            logger=CLIENTS,
            shutdown_timeout=1.0,
            handler_cancellation=True,  # of a client that hangs up
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.host, self.port)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
        except OSError as error:
            self._failure = error
            self._ready.set()
        finally:
            await runner.cleanup()
