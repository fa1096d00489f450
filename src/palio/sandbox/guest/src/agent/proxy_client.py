"""The agent's only door: GET and POST of JSON over one kept-alive connection, parsed JSON or None.

Written on bare sockets: importing http.client costs 20 ms of each fresh interpreter, more than all
tool calls of an episode.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

TYPE_CHECKING = False  # importing typing costs 3 ms of every start
if TYPE_CHECKING:
    from typing import Any

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PATH = _SAFE | frozenset(b"/?&=%+,:;@!$'()*[]")
_RETRIED = (429, 500, 502, 503, 504)
_TOOL_S, _MODEL_S = 0.1, 2.0
"""What a request adds to the run's logical clock, however long it really took."""
_ASKED: list[tuple[str, Any, str]] = []
"""(tool, arguments as text, proof) of calls that the model asked for and nobody made yet."""


class ProxyClient:
    """Talks to the broker.

    Args:
        proxy_url: base URL, default SANDBOX_PROXY_URL, then http://proxy:80.
        timeout: seconds for one request.
        max_retries: tries after the first one, on broken connections and 5xx.
        retry_delay: seconds before a retry, doubling each time.
        rate_limit_retry_delay: seconds before a retry after 429.
        api_key: sent as a bearer token.
    """

    def __init__(
        self,
        proxy_url: str | None = None,
        timeout: float = 300,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        rate_limit_retry_delay: float = 5.0,
        api_key: str | None = None,
    ) -> None:
        url = proxy_url or os.environ.get("SANDBOX_PROXY_URL") or "http://proxy:80"
        self.proxy_url = url.rstrip("/")
        scheme, _, rest = self.proxy_url.partition("://")
        if scheme != "http":
            raise ValueError(f"the proxy URL must start with http://, not {scheme}://")
        place, slash, path = rest.partition("/")
        host, _, port = place.partition(":")
        self._address = (host, int(port or 80))
        self._prefix = slash + path
        self._timeout = timeout
        self._max_retries = max_retries
        self._retry_delay = retry_delay
        self._rate_limit_retry_delay = rate_limit_retry_delay
        self._key = api_key
        self._local = threading.local()

    @property
    def last_headers(self) -> dict[str, str]:
        """Headers of this thread's last answer, names in lower case; tools warn there."""
        return dict(getattr(self._local, "headers", {}))

    def get(
        self,
        path: str,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Parsed JSON of a GET, None when it failed. Parameters that are None are left out."""
        headers = _with_proof(path, params, headers)
        pairs = [(k, v) for k, v in (params or {}).items() if v is not None]
        query = "&".join(f"{_quote(str(k))}={_quote(_text(v))}" for k, v in pairs)
        return self._request("GET", path + ("?" + query if query else ""), b"", headers)

    def post(
        self,
        path: str,
        json_data: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Parsed JSON of a POST, None when it failed."""
        value = {} if json_data is None else json_data
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        body = text.encode("utf-8", "replace")
        reply = self._request("POST", path, body, _with_proof(path, value, headers))
        if path.endswith("chat/completions"):
            _remember(reply)
        return reply

    def _request(self, method: str, path: str, body: bytes, headers: dict[str, str] | None) -> Any:
        clock = getattr(sys.modules.get("fixed"), "CLOCK", None)
        if clock is not None:
            clock.advance(_MODEL_S if "chat/completions" in path else _TOOL_S)
        wait = self._retry_delay
        for attempt in range(self._max_retries + 1):
            try:
                status, final, data = self._exchange(method, path, body, headers)
            except (OSError, ValueError):  # broken connection, or no HTTP answer
                status, final, data = 0, False, b""
            if status == 200:
                try:
                    return json.loads(data)
                except (ValueError, RecursionError):
                    return None
            if final or (status and status not in _RETRIED) or attempt == self._max_retries:
                return None
            time.sleep(self._rate_limit_retry_delay if status == 429 else wait)
            wait *= 2
        return None

    def _exchange(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None
    ) -> tuple[int, bool, bytes]:
        lines = [
            f"{method} {self._prefix}/{_quote(path.lstrip('/'), _PATH)} HTTP/1.1",
            f"Host: {self._address[0]}:{self._address[1]}",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
        ]
        if self._key:
            lines.append(f"Authorization: Bearer {self._key}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines = [line.replace("\r", " ").replace("\n", " ") for line in lines]
        request = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body
        connection, fresh = self._connection()
        try:
            return self._talk(connection, request)
        except OSError:
            if fresh:
                raise
        # A kept-alive connection that the server closed meanwhile: once more on a fresh one.
        return self._talk(self._connection()[0], request)

    def _talk(self, connection: _Connection, request: bytes) -> tuple[int, bool, bytes]:
        try:
            connection.sock.sendall(request)
            status, headers, data = connection.read_reply()
        except (OSError, ValueError):
            self._drop()
            raise
        if headers.get("connection", "").lower() == "close":
            self._drop()
        self._local.headers = headers
        return status, headers.get("x-should-retry") == "false", data

    def _connection(self) -> tuple[_Connection, bool]:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            return connection, False
        connection = _Connection(self._address, self._timeout)
        self._local.connection = connection
        return connection, True

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            connection.close()


class _Connection:
    """One HTTP/1.1 connection; a reply must give its length or come in chunks."""

    def __init__(self, address: tuple[str, int], timeout: float) -> None:
        self.sock = socket.create_connection(address, timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.sock.makefile("rb")

    def read_reply(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers with lower-case names, and the body."""
        status_line = self._file.readline(65536).split(None, 2)
        if len(status_line) < 2:
            raise OSError("the connection was closed before a reply")
        headers = self._headers()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            data = self._chunks()
        else:
            length = int(headers.get("content-length", "0"))
            data = self._file.read(length)
            if len(data) < length:
                raise OSError("the reply was cut short")
        return int(status_line[1]), headers, data

    def _headers(self) -> dict[str, str]:
        headers = {}
        while (line := self._file.readline(65536)) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return headers

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._file.readline(64).split(b";")[0], 16):
            parts.append(self._file.read(size))
            self._file.readline(8)
        self._headers()
        return b"".join(parts)

    def close(self) -> None:
        self._file.close()
        self.sock.close()


def _remember(reply: Any) -> None:
    """Keep the proofs of a completion's calls, for agents that send no call ids themselves."""
    try:
        calls = reply["choices"][0]["message"].get("tool_calls") or ()
        asked = [(each["function"], each["id"]) for each in calls]
        asked += [(each, each["nonce"]) for each in reply.get("palio_nonces") or ()]
        for function, proof in asked:
            arguments = json.loads(function["arguments"] or "{}")
            if isinstance(arguments, dict):
                _ASKED.append((function["name"], _plain(arguments), proof))
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, RecursionError):
        return


def _with_proof(path: str, arguments: Any, headers: dict[str, str] | None) -> dict[str, str] | None:
    """Headers with the proof of the call that a request carries out, if the model asked for it.

    The host decides whether it is one: what is sent here is only what the host gave.
    """
    tool = path.strip("/")
    if headers or not tool.startswith("search/") or not isinstance(arguments, dict | None):
        return headers
    wanted = (tool[7:], _plain(arguments or {}))
    for at, (name, asked, proof) in enumerate(_ASKED):
        if (name, asked) == wanted:
            del _ASKED[at]
            return {"X-Palio-Nonce": proof}
    return headers


def _plain(arguments: dict[str, Any]) -> dict[str, str]:
    return {str(k): _text(v) for k, v in arguments.items() if v is not None}


def _quote(text: str, safe: frozenset[int] = _SAFE) -> str:
    data = text.encode("utf-8", "replace")
    return "".join(chr(b) if b in safe else f"%{b:02X}" for b in data)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)
