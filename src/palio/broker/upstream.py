"""What a model server does wrong comes back as one typed error, after bounded retries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Self, runtime_checkable
from urllib.parse import urlsplit

import aiohttp

from palio.broker.hangup import seconds_left
from palio.broker.relay import run_key
from palio.broker.wire import garbage, load_json, read_completion
from palio.records import ConfigError, FaultCode, InputError, PalioError, UpstreamError
from palio.world.background import BackgroundLoop

MAX_REPLY = 32_000_000
"""Bytes; the longest completion that a 1 M token context can give is under 8 MB."""
MAX_WAIT = 30.0
"""Seconds; a longer Retry-After than this is not honoured, the run would be over first."""


@runtime_checkable
class Upstream(Protocol):
    """Answers chat completions; must be safe to call from many threads."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The response to an OpenAI chat.completions request.

        Raises:
            UpstreamError: the model server failed (platform).
            RejectedError: the request itself is refused (agent).
        """


@runtime_checkable
class AsyncUpstream(Protocol):
    """An upstream that needs no thread to wait in."""

    async def acomplete(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Upstream.complete`; for callers on any event loop."""


class RejectedError(PalioError):
    """The model server refuses this request (400, 413, 422: too long, malformed): the agent's."""


class _RateLimitedError(UpstreamError):
    """429; `retry_after` is what the server asked for in seconds, None if it did not say."""

    def __init__(self, what: str, where: str, retry_after: float | None) -> None:
        super().__init__(
            what,
            code=FaultCode.upstream_rate_limited,
            retryable=True,
            where=where,
            remedy="lower the concurrency, or raise the server's quota, then resume the run",
        )
        self.retry_after = retry_after


class _NoUpstream:
    """Stands where no model server is configured."""

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Always fails."""
        del body
        raise UpstreamError(
            "no model server is configured",
            code=FaultCode.upstream_unreachable,
            remedy="name one, for example with --model-url",
        )


no_upstream = _NoUpstream()


def scoped(upstream: Upstream, run: str) -> Upstream:
    """The upstream as one run may use it: under the run's own key, if it hands out such keys."""
    for_run = getattr(upstream, "for_run", None)
    return for_run(run) if callable(for_run) else upstream


def error_fields(error: PalioError) -> dict[str, Any]:
    """An upstream's error as plain data, for the journal."""
    fields: dict[str, Any] = {"what": error.what, "where": error.where, "remedy": error.remedy}
    if isinstance(error, UpstreamError):
        fields |= {"code": int(error.code), "retryable": error.retryable}
    return fields


def error_of(fields: Mapping[str, Any]) -> PalioError:
    """The error that `error_fields` took apart."""
    texts = {name: str(fields.get(name, "")) for name in ("where", "remedy")}
    what = str(fields.get("what", ""))
    if "code" not in fields:
        return RejectedError(what, **texts)
    retryable = bool(fields.get("retryable"))
    return UpstreamError(what, code=FaultCode(fields["code"]), retryable=retryable, **texts)


def ask(upstream: Upstream, body: dict[str, Any]) -> dict[str, Any] | PalioError:
    """The upstream's response, or what it failed with; any other exception is its bug."""
    try:
        return upstream.complete(body)
    except Exception as error:  # noqa: BLE001 - an upstream's bug is the platform's fault
        return _failure(error)


async def ask_async(upstream: AsyncUpstream, body: dict[str, Any]) -> dict[str, Any] | PalioError:
    """The same on an event loop."""
    try:
        return await upstream.acomplete(body)
    except Exception as error:  # noqa: BLE001 - see `ask`
        return _failure(error)


def _failure(error: Exception) -> PalioError:
    if isinstance(error, UpstreamError | RejectedError):
        return error
    if isinstance(error, InputError):
        return RejectedError(error.what, where=error.where, remedy=error.remedy)
    if isinstance(error, PalioError):  # a damaged checkpoint, a missing package: not the agent's
        return UpstreamError(
            error.what,
            code=FaultCode.upstream_server_error,
            where=error.where,
            remedy=error.remedy,
        )
    return UpstreamError(
        f"the upstream raised {type(error).__name__}: {error}"[:300],
        code=FaultCode.upstream_server_error,
    )


class HttpUpstream:
    """An OpenAI-compatible model server over HTTP, with retries; usable from any thread or loop.

    All requests run on one event loop in one thread of its own, which starts with the first request
    and ends with `close`.

    Args:
        url: base URL with the version, e.g. http://127.0.0.1:8000/v1.
        api_key: sent as a bearer token, "" for none.
        timeout_s: seconds for one try; no try outlives the run that it is made for (`hangup`).
        retries: tries after the first one, on 429, 5xx, time-outs, broken connections and garbage.
        model: when set, replaces the model that every request names.
        backoff_s: wait before the first retry; it doubles each time, and each wait is drawn from
            half to one and a half of it, so that runs which failed together do not come back
            together. A Retry-After header wins.
        budget_s: seconds that all waits of one request may take.
        connections: most requests in flight.
        scoped_keys: show the server a key derived from `api_key` for each run, never the key
            itself; for gateways that hold the same master key (see `relay.run_key`).
        jitter: draws from [0, 1).

    Raises:
        ConfigError: the URL is none of HTTP.
    """

    def __init__(
        self,
        url: str,
        api_key: str = "",
        timeout_s: float = 120.0,
        retries: int = 3,
        *,
        model: str = "",
        backoff_s: float = 0.5,
        budget_s: float = 60.0,
        connections: int = 64,
        scoped_keys: bool = False,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = endpoint_of(url, "chat/completions")
        self.model = model
        self._where = shown_url(self.url)
        check_key(self.url, api_key)
        self._key = api_key
        self._scoped_keys = scoped_keys
        self._budget_s = budget_s
        self._jitter = jitter
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._connections = connections
        self._sleep = sleep
        self._loop = BackgroundLoop("palio-upstream", self._shut)
        self._client: aiohttp.ClientSession | None = None

    def for_run(self, run: str) -> Upstream:
        """This server as one run sees it: with a key of its own if keys are scoped."""
        if not self._scoped_keys or not self._key:
            return self
        return _RunUpstream(self, run_key(self._key, run))

    def complete(self, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
        """See `Upstream.complete`; blocks the calling thread, until its run is over at most."""
        asked = self._loop.submit(self._complete(body, self._key if key is None else key))
        left = seconds_left()
        try:
            return asked.result(left)
        except TimeoutError as error:
            asked.cancel()  # the connection is closed, and the server sees that nobody waits
            what = f"no answer within the {left:g} s that the run had left"
            raise self._error(what, FaultCode.upstream_timed_out) from error

    async def acomplete(self, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
        """See `Upstream.complete`; for callers on any event loop."""
        asked = self._complete(body, self._key if key is None else key)
        return await asyncio.wrap_future(self._loop.submit(asked))

    def close(self) -> None:
        """Close connections and the thread; requests in flight fail."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _shut(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _complete(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        if self.model:
            body = {**body, "model": self.model}
        wait, left = self._backoff_s, self._budget_s
        for attempt in range(self._retries + 1):
            try:
                return await self._try(body, key)
            except UpstreamError as error:
                if not error.retryable or attempt == self._retries or left <= 0:
                    raise
                asked = error.retry_after if isinstance(error, _RateLimitedError) else None
                drawn = wait * (0.5 + self._jitter()) if asked is None else asked
                pause = min(MAX_WAIT, drawn, left)
                left -= pause
                await self._sleep(pause)
                wait *= 2
        raise AssertionError("unreachable")  # pragma: no cover

    async def _try(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        if self._client is None:
            connector = aiohttp.TCPConnector(limit=self._connections)
            self._client = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._client.post(self.url, json=body, headers=headers) as reply:
                data = await _read(reply)
                if reply.status != 200:
                    after = reply.headers.get("Retry-After")
                    raise self._refusal(reply.status, data, after, str(body.get("model")), key)
        except TimeoutError as error:
            raise self._error(
                f"no answer within {self._timeout_s:g} s", FaultCode.upstream_timed_out
            ) from error
        except aiohttp.ClientPayloadError as error:
            raise self._error(
                f"the model server's answer broke off: {error}"[:300], FaultCode.upstream_truncated
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error(
                f"cannot talk to the model server: {error or type(error).__name__}"[:300],
                FaultCode.upstream_unreachable,
            ) from error
        try:
            response = load_json(data)
        except InputError as error:
            raise garbage(f"the model server's answer is {error.what}", self._where) from error
        read_completion(response, self._where)
        return dict(response)

    def _refusal(
        self, status: int, data: bytes, after: str | None, model: str, key: str
    ) -> PalioError:
        """Who is to blame for a refusal: what the agent sent, or what the operator configured."""
        text = data[:4_000].decode("utf-8", "replace").strip()
        for secret in (key, self._key):
            if len(secret) > 7:  # a shorter one is a placeholder, and may be part of any word
                text = text.replace(secret, "[the key]")
        text = f"to a request for the model {model[:100]!r}: {text[:300]}"
        what = f"the model server answered {status} {text}"
        unknown = b"model_not_found" in data or (status == 404 and b"model" in data.lower())
        if status in (400, 413, 422) and not unknown:
            return RejectedError(what, where=self._where)
        if status == 429:
            return _RateLimitedError(what, self._where, _seconds(after))
        if status >= 500 or status == 408:
            return self._error(what, FaultCode.upstream_server_error)
        code = FaultCode.upstream_server_error
        remedy = "check the URL: /chat/completions is added to what was given, mostly .../v1"
        if unknown:
            code, remedy = FaultCode.upstream_model_unknown, "name a model that the server has"
        elif status in (401, 403):
            code, remedy = FaultCode.upstream_key_refused, "check the key and what it may use"
            remedy = remedy if key else "no key was sent: give one that may use this model"
        return UpstreamError(what, code=code, where=self._where, remedy=remedy)

    def _error(self, what: str, code: FaultCode) -> UpstreamError:
        return UpstreamError(
            what,
            code=code,
            retryable=True,
            where=self._where,
            remedy="see that the model server runs and has capacity, then resume the run",
        )


class _RunUpstream:
    """A model server under the key of one run."""

    def __init__(self, server: HttpUpstream, key: str) -> None:
        self._server = server
        self._run_key = key

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Upstream.complete`."""
        return self._server.complete(body, self._run_key)

    async def acomplete(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `HttpUpstream.acomplete`."""
        return await self._server.acomplete(body, self._run_key)


def checked_url(url: str) -> str:
    """The URL without a slash at its end.

    Raises:
        ConfigError: it is no http or https URL with a host.
    """
    remedy = "give one such as http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:  # half a bracket, a port over 65535
        raise ConfigError(f"{url!r} is no URL: {error}", remedy=remedy) from error
    if not usable:
        raise ConfigError(f"{shown_url(url)!r} is no URL of a model server", remedy=remedy)
    return url.rstrip("/")


def endpoint_of(url: str, path: str) -> str:
    """The address of a route below a base URL; a query that the base has, such as a version, stays.

    Raises:
        ConfigError: the base is no http or https URL with a host.
    """
    parts = urlsplit(checked_url(url))
    return parts._replace(path=f"{parts.path.rstrip('/')}/{path}").geturl()


def check_key(url: str, api_key: str) -> None:
    """A request can carry the user of its URL or a key.

    Raises:
        ConfigError: there are both.
    """
    shown = shown_url(url)
    if api_key and shown != url.partition("?")[0]:
        raise ConfigError(
            "the URL names a user and a key is given too; a request can carry but one",
            where=shown,
            remedy="leave one of them out",
        )


def shown_url(url: str) -> str:
    """A URL as messages and records may show it: without user, password, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    data = await reply.content.read(MAX_REPLY + 1)
    chunks = [data]
    size = len(data)
    while data and size <= MAX_REPLY:
        data = await reply.content.read(MAX_REPLY + 1 - size)
        chunks.append(data)
        size += len(data)
    if size > MAX_REPLY:
        raise garbage(f"the model server's answer is longer than {MAX_REPLY} bytes")
    return b"".join(chunks)


def _seconds(after: str | None) -> float | None:
    try:
        return max(0.0, float(after)) if after else None
    except ValueError:
        return None
