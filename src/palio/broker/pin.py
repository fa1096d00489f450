"""What a model is called, and what its server says of it: two that are equal are taken for one."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec

from palio.broker.upstream import check_key, checked_url, endpoint_of, shown_url
from palio.records import FaultCode, Record, UpstreamError

_PASSING = ("created", "permission")
"""Members of an entry of /models that change from one answer to the next, e.g. vLLM's."""
_WAITS = (0.5, 2.0)
_TIMEOUT_S = 20.0
_DIGESTS = ("weights", "config", "tokenizer", "template")


class ModelPin(Record, frozen=True):
    """Which model answered; two that are equal may add to one folder of results.

    Attributes:
        weights, config, tokenizer, template: digests of a checkpoint's parts; those of an endpoint
            where its server tells them, as palio's does.
        base_url: of an endpoint, without user, password and query; "" for a checkpoint.
        name: of the model, as the endpoint is asked for it.
        says: what the endpoint says of the model in GET /models, besides; empty where it has no
            such list, or the model is not in it.
    """

    weights: str = ""
    config: str = ""
    tokenizer: str = ""
    template: str = ""
    base_url: str = ""
    name: str = ""
    says: dict[str, Any] = {}

    def in_words(self) -> str:
        """One line for people, digests short."""
        place = f"{self.name} at {self.base_url}" if self.base_url else ""
        if self.weights:
            return f"{place}, weights {short(self.weights)}".removeprefix(", ")
        return f"{place}, its server does not tell the weights"


def short(digest: str) -> str:
    """The beginning of a digest: 12 of its 64 digits."""
    return digest.removeprefix("sha256:")[:12]


def endpoint_pin(base_url: str, api_key: str, model: str) -> ModelPin:
    """The pin of an endpoint: asks its server what it says of the model.

    Raises:
        UpstreamError: the server cannot be reached, or is broken.
        ConfigError: the URL is none, or names a user beside a key.
    """
    url = endpoint_of(base_url, "models")
    check_key(url, api_key)
    told = asyncio.run(_model_list(url, api_key))
    entry = next((each for each in told if each.get("id") == model), {})
    ours = entry.get("palio")
    digests = ours if isinstance(ours, dict) else {}
    says = {name: entry[name] for name in sorted(entry) if name not in (*_PASSING, "palio")}
    place = {"base_url": shown_url(checked_url(base_url)), "name": model, "says": says}
    return msgspec.convert(
        {**place, **{name: str(digests.get(name, "")) for name in _DIGESTS}}, ModelPin
    )


async def _model_list(url: str, api_key: str) -> list[dict[str, Any]]:
    """Entries of GET /models; none where a server has no such list or shows it to nobody."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        for wait in (*_WAITS, 0.0):
            try:
                async with client.get(url, headers=headers) as reply:
                    if reply.status == 501 or (reply.status != 429 and reply.status < 500):
                        return _entries(await reply.read()) if reply.status == 200 else []
                    why = f"answers {reply.status}"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = f"cannot be reached: {error or type(error).__name__}"[:300]
            await asyncio.sleep(wait)
    raise UpstreamError(
        f"the model server {why}",
        code=FaultCode.upstream_unreachable,
        where=shown_url(url),
        remedy="see that it runs and that the URL is right; nothing was run or written",
    )


def _entries(data: bytes) -> list[dict[str, Any]]:
    try:
        listed = msgspec.json.decode(data)["data"]
        return [each for each in listed if isinstance(each, dict)]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []  # a server that is none of OpenAI's kind; its completions will say so
