"""A server that completes token ids, as vLLM does: one more `Sampler`."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from palio.broker.upstream import checked_url, shown_url
from palio.records import ConfigError, FaultCode, UpstreamError
from palio.train.engine import Sampled
from palio.train.rl.sampler import Decoding

SAMPLER_KEY = "its key goes by PALIO_SAMPLER_KEY"
"""What to do about a key where one is sent: rejection and KTO."""
NO_KEY = "serve it without an API key, where only the trainer can reach it"
"""What to do about a key for Dr. GRPO: TRL's client of the same server sends none."""
MAX_TEMPERATURE = 2.0
"""Of a request to vLLM, which refuses a higher one."""
_WHOLE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Of vLLM's own parameters: the whole distribution. Where a request is silent, vLLM takes them
from the model's generation_config.json, and Qwen3's says top_k = 20."""
_OTHER = (400, 404, 405, 410, 415, 422, 501)
"""Statuses of a server that does not have what was asked for, and will not have it later."""
_PASSING = (408, 425, 429)
"""Beside 5xx: statuses of a server that may answer the same request later."""
_WAITS = (0.5, 1.0, 2.0)
"""Seconds before another look at a server that fails, as `HttpUpstream` waits."""
_LOOK_S = 60.0
"""For one token: one that hangs is not waited for as long as for a whole turn."""


class _OtherServerError(UpstreamError):
    """What answers is a server of another kind: it refuses the request, or has no token ids."""


def takes_address(url: str) -> bool:
    """Whether completions of token ids can be asked for there: no user, password or query."""
    parts = urlsplit(checked_url(url))
    return not ("@" in parts.netloc or parts.query or parts.fragment)


def check_completions(url: str, temperature: float, setting: str, *, on_key: str) -> None:
    """Refuse what a `CompletionsSampler` can ask for nothing with.

    Args:
        url: base address of the server.
        temperature: of all its completions.
        setting: what the recipe calls the address.
        on_key: what to do about the server's key, in words.

    Raises:
        ConfigError: the address is no URL, or has parts that are lost; a temperature over vLLM's.
    """
    if not takes_address(url):
        raise ConfigError(
            f"`{setting}` has a user, a password or a query, which completions of token ids take "
            "none of",
            where=shown_url(url),
            remedy=f"say http://HOST:PORT alone; {on_key}",
        )
    if temperature > MAX_TEMPERATURE:
        raise ConfigError(
            f"temperature = {temperature:g}: vLLM takes at most {MAX_TEMPERATURE:g}",
            where=shown_url(url),
            remedy="lower it, or leave the address out",
        )


class CompletionsSampler:
    """`POST {url}/v1/completions` with a prompt of token ids, as vLLM serves it.

    Args:
        url: base address of the server, with or without ``/v1``.
        model: name that the server gives the model.
        key: bearer token, "" for none.
        on_key: what to do where the server refuses it, in words.
        timeout_s: of one request.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        on_key: str = SAMPLER_KEY,
        timeout_s: float = 300.0,
    ) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/completions"
        self._model, self._key, self._on_key, self._timeout = model, key, on_key, timeout_s

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        """See `Sampler`."""
        return self._sample(ids, decoding, self._timeout)

    def answers(self, ids: Sequence[int]) -> bool:
        """Whether the server completes token ids and tells the new ones.

        Raises:
            UpstreamError: it does not say, also when asked again: it is not there, has no capacity,
                is broken, or refuses the key. What it is was not learned.
        """
        look = Decoding(1, 0.0, 1.0, 0)
        for wait in (*_WAITS, None):
            try:
                return len(self._sample(ids, look, min(self._timeout, _LOOK_S)).ids) == 1
            except _OtherServerError:
                return False
            except UpstreamError as error:
                if not error.retryable or wait is None:
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable")  # pragma: no cover

    def _sample(self, ids: Sequence[int], decoding: Decoding, timeout_s: float) -> Sampled:
        body = {
            "model": self._model,
            "prompt": list(ids),
            "return_token_ids": True,
            "logprobs": 0,
            **_WHOLE,
            **decoding._asdict(),
        }
        head = {"Content-Type": "application/json"}
        if self._key:
            head["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(  # noqa: S310 - the address is the user's configuration
            self._url, json.dumps(body).encode(), head
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310
                data = reply.read()
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, HTTPException) as error:  # the last one: it broke off
            raise _passing(f"{self._url}: {error}") from error
        return self._read(data)

    def _read(self, data: bytes) -> Sampled:
        try:
            choice: Any = json.loads(data)["choices"][0]
            written, scores = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            return Sampled([int(token) for token in written], [float(score) for score in scores])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise _OtherServerError(
                f"{self._url} answers without token ids or log-probabilities: {error!r}",
                code=FaultCode.upstream_garbage,
                remedy="serve the model with vLLM 0.10.2 or newer, which has `return_token_ids`",
            ) from error

    def _refused(self, error: urllib.error.HTTPError) -> UpstreamError:
        """What the server said: a bare number tells nobody which flag it was started without."""
        with error:
            said = error.read(4_000).decode("utf-8", "replace").strip()
        status = error.code
        what = f"{self._url} answers {status} for the model {self._model!r}: {said[:300]}"
        if status in _PASSING or (status >= 500 and status not in _OTHER):
            return _passing(what)
        code, remedy = FaultCode.upstream_server_error, "see what answers at this address"
        if status == 404 and "model" in said:
            code, remedy = FaultCode.upstream_model_unknown, "name the model as the server does"
        elif status in (401, 403):
            code, remedy = FaultCode.upstream_key_refused, self._on_key
        elif status == 400:
            remedy = "ask what the server takes"
            if "context" in said or "max_model_len" in said:
                remedy = "start it with a `--max-model-len` of at least the recipe's `longest`"
        kind = _OtherServerError if status in _OTHER else UpstreamError
        return kind(what, code=code, remedy=remedy)


def _passing(what: str) -> UpstreamError:
    return UpstreamError(
        what,
        code=FaultCode.upstream_server_error,
        retryable=True,
        remedy="start it again, or give it more capacity; then the same command goes on",
    )
