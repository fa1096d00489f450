"""A server that completes token ids, as vLLM does, and how it is known whether one can."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from urllib.parse import urlsplit

from palio.broker.upstream import checked_url, shown_url
from palio.records import ConfigError, FaultCode, UpstreamError
from palio.train.admission import broken
from palio.train.engine import Sampled
from palio.train.rl.sampler import Decoding

_WHOLE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Of vLLM's own parameters: the whole distribution. Where a request is silent, vLLM takes them
from the model's generation_config.json, and Qwen3's says top_k = 20."""
MAX_TEMPERATURE = 2.0
"""Of a request to vLLM, which refuses a higher one."""


def check_completions(
    url: str, temperature: float, setting: str, key: str = "a key goes by PALIO_SAMPLER_KEY"
) -> None:
    """Refuse what a `CompletionsSampler` can ask for nothing with.

    Args:
        url: base address of the server.
        temperature: of all its completions.
        setting: what the recipe calls the address.
        key: how a key is given.

    Raises:
        ConfigError: the address is no URL, or has parts that are lost; a temperature over vLLM's.
    """
    parts = urlsplit(checked_url(url))
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"`{setting}` has a user, a password or a query, which completions of token ids take "
            "none of",
            where=shown_url(url),
            remedy=f"say http://HOST:PORT alone; {key}",
        )
    if temperature > MAX_TEMPERATURE:
        raise ConfigError(
            f"temperature = {temperature:g}: vLLM takes at most {MAX_TEMPERATURE:g}",
            where=shown_url(url),
            remedy="lower it, or leave the address out",
        )


_PAUSES = (1.0, 4.0)
"""Seconds before a server that does not answer is asked again what it can do."""
_LASTING = (FaultCode.upstream_model_unknown, FaultCode.upstream_key_refused)
_NO_IDS = (400, 404, 405, 415, 422, 501)
"""How a server answers to a prompt of ids, or an address, that it does not know."""


def _speaks_otherwise(error: UpstreamError) -> bool:
    """Whether a server has answered, and that it does not complete token ids."""
    cause = error.__cause__
    refused = isinstance(cause, urllib.error.HTTPError) and cause.code in _NO_IDS
    return error.code == FaultCode.upstream_garbage or (refused and error.code not in _LASTING)


class CompletionsSampler:
    """`POST {url}/v1/completions` with a prompt of token ids, as vLLM serves it.

    Args:
        url: base address of the server, with or without ``/v1``.
        model: name that the server gives the model.
        key: bearer token, "" for none.
        timeout_s: of one request.
    """

    def __init__(self, url: str, model: str, *, key: str = "", timeout_s: float = 300.0) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/completions"
        self._model, self._key, self._timeout = model, key, timeout_s

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        """See `Sampler`."""
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
            with urllib.request.urlopen(request, timeout=self._timeout) as reply:  # noqa: S310
                choice = json.load(reply)["choices"][0]
            written, scores = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            return Sampled([int(token) for token in written], [float(score) for score in scores])
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, ValueError, HTTPException) as error:  # the last one: it broke off
            raise broken(f"{self._url}: {error}") from error
        except (KeyError, IndexError, TypeError) as error:
            raise UpstreamError(
                f"{self._url} answers without token ids or log-probabilities: {error!r}",
                code=FaultCode.upstream_garbage,
                remedy="serve the model with vLLM 0.10.2 or newer, which has `return_token_ids`",
            ) from error

    def answers(self, ids: Sequence[int]) -> bool:
        """Whether the server completes token ids and tells the new ones.

        Raises:
            UpstreamError: it cannot be told: nobody answers, the model is unknown or the key wrong.
        """
        for pause in (*_PAUSES, None):
            try:
                return len(self.sample(ids, Decoding(1, 0.0, 1.0, 0)).ids) == 1
            except UpstreamError as error:
                if _speaks_otherwise(error):
                    return False
                if pause is None or error.code in _LASTING:
                    raise
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _refused(self, error: urllib.error.HTTPError) -> UpstreamError:
        """What the server said: a bare number tells nobody which flag it was started without."""
        with error:
            said = error.read(4_000).decode("utf-8", "replace").strip()
        what = f"{self._url} answers {error.code} for the model {self._model!r}: {said[:300]}"
        if error.code == 404 and "model" in said:
            code, remedy = FaultCode.upstream_model_unknown, "name the model as the server does"
        elif error.code in (401, 403):
            code = FaultCode.upstream_key_refused
            remedy = "give the key that it wants as PALIO_SAMPLER_KEY; Dr. GRPO's may want none"
        elif error.code == 400:
            code, remedy = FaultCode.upstream_server_error, "ask what the server takes"
            if "context" in said or "max_model_len" in said:
                remedy = "start it with a `--max-model-len` of at least the recipe's `longest`"
        else:
            return broken(what)
        return UpstreamError(what, code=code, remedy=remedy)
