"""A folder of results belongs to one model: these weights, or what its server says it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from palio.broker.upstream import checked_url, endpoint_of, shown_url
from palio.records import (
    FaultCode,
    InputError,
    Record,
    ResumeError,
    UpstreamError,
    canonical_json,
)
from palio.world.artefacts import replacing

MODEL = "model"
"""Key of the pin in what a folder says it belongs to."""
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


def checkpoint_pin(checkpoint: Path) -> ModelPin:
    """The pin of a checkpoint, from its files; `palio.train.serving.checkpoint_digests`."""
    from palio.train.serving import checkpoint_digests

    return loaded_pin(checkpoint_digests(checkpoint))


def loaded_pin(identity: Mapping[str, str]) -> ModelPin:
    """The pin of a loaded checkpoint, from its `identity`."""
    return msgspec.convert(dict(identity), ModelPin)


def endpoint_pin(base_url: str, api_key: str, model: str) -> ModelPin:
    """The pin of an endpoint: asks its server what it says of the model.

    Raises:
        UpstreamError: the server cannot be reached, or is broken.
        ConfigError: the URL is none.
    """
    told = asyncio.run(_model_list(endpoint_of(base_url, "models"), api_key))
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
                    if reply.status != 429 and reply.status < 500:
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


def plain(pin: ModelPin | None) -> dict[str, Any]:
    """The pin as a folder keeps it; empty for programs, which have no weights."""
    kept: dict[str, Any] = msgspec.to_builtins(pin) if pin else {}
    return kept


def pin_of(identity: Mapping[str, Any]) -> ModelPin | None:
    """The pin in what a folder says it belongs to; None where it tells none."""
    held = identity.get(MODEL)
    return msgspec.convert(held, ModelPin) if held else None


def decoded(path: Path) -> dict[str, Any]:
    """What a folder says it belongs to.

    Raises:
        InputError: the file is not JSON.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(f"not an evaluation's identity: {error}", where=str(path)) from error


def hold_identity(path: Path, identity: dict[str, Any], *, scored: bool) -> None:
    """Write what a folder belongs to, or check that it is the same as before.

    Args:
        path: of the file.
        identity: everything that decides the results.
        scored: whether the folder has results; one without may change its model.

    Raises:
        ResumeError: the folder belongs to another evaluation, or to another model.
    """
    now = msgspec.json.decode(canonical_json(identity))
    then = decoded(path) if path.exists() else None
    if then is not None:
        keys = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
        if not keys:
            return
        if keys != [MODEL]:
            raise _other(then, now, keys, path.parent)
        if scored:
            check_pin(then, now, path.parent)
    with replacing(path) as file:
        file.write(canonical_json(identity) + b"\n")


def _other(
    then: dict[str, Any], now: dict[str, Any], keys: Sequence[str], where: Path
) -> ResumeError:
    parts = [f"{key}: {inner}" for key in keys if (inner := _inner(then, now, key))]
    detail = f" ({'; '.join(parts)})" if parts else ""
    return ResumeError(
        f"this folder belongs to another evaluation: {', '.join(keys)} differ{detail}",
        where=str(where),
        remedy="choose another --out, or remove the folder to start afresh",
    )


def _inner(then: dict[str, Any], now: dict[str, Any], key: str) -> str:
    """Which members of a key differ, where it has members; "settings" alone says little."""
    one, other = then.get(key), now.get(key)
    if not isinstance(one, dict) or not isinstance(other, dict):
        return ""
    return ", ".join(k for k in sorted(one.keys() | other.keys()) if one.get(k) != other.get(k))


def check_pin(then: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """Refuse to add one model's results to another's.

    Args:
        then: what the folder says it belongs to.
        now: the same of what is about to be run.
        where: the folder.

    Raises:
        ResumeError: another model, both named; or the folder does not say which.
    """
    one, other = then.get(MODEL) or {}, now.get(MODEL) or {}
    if one == other:
        return
    remedy = "choose another --out for this model, or put the old one back"
    if not one:
        raise ResumeError(
            "this folder does not say which weights it was made with, and rollouts of two models "
            f"must not be mixed; now there are {_named(other, sorted(other))}",
            where=str(where),
            remedy="choose another --out, or remove the folder to start afresh",
        )
    keys = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
    raise ResumeError(
        f"this folder belongs to another model: {', '.join(keys)} differ; "
        f"it was made with {_named(one, keys)}, now there is {_named(other, keys)}",
        where=str(where),
        remedy=remedy,
    )


def _named(pin: Mapping[str, Any], keys: list[str]) -> str:
    shown = (f"{key} {_text(pin[key])}" for key in keys if pin.get(key))
    return ", ".join(shown) or "no word of it"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()[:200]
