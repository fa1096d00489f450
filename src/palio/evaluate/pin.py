"""A folder of results belongs to one model: these weights, or what its server says it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from palio.broker.pin import ModelPin
from palio.records import InputError, ResumeError, canonical_json
from palio.world.artefacts import replacing

MODEL = "model"
"""Key of the pin in what a folder says it belongs to."""


def checkpoint_pin(checkpoint: Path) -> ModelPin:
    """The pin of a checkpoint, from its files; `palio.train.serving.checkpoint_digests`."""
    from palio.train.serving import checkpoint_digests

    return loaded_pin(checkpoint_digests(checkpoint))


def loaded_pin(identity: Mapping[str, str]) -> ModelPin:
    """The pin of a loaded checkpoint, from its `identity`."""
    return msgspec.convert(dict(identity), ModelPin)


def plain(pin: ModelPin | None) -> dict[str, Any]:
    """The pin as a folder keeps it; empty for programs, which have no weights."""
    kept: dict[str, Any] = msgspec.to_builtins(pin) if pin else {}
    return kept


def pin_of(identity: Mapping[str, Any]) -> ModelPin | None:
    """The pin in what a folder says it belongs to; None where it tells none.

    Raises:
        InputError: what it tells is no pin.
    """
    held = identity.get(MODEL)
    try:
        return msgspec.convert(held, ModelPin) if held else None
    except msgspec.ValidationError as error:
        raise InputError(
            f"does not say which model was evaluated: {error}",
            remedy="its identity was edited: evaluate again, with another --out",
        ) from error


def decoded(path: Path) -> dict[str, Any]:
    """What a folder says it belongs to.

    Raises:
        InputError: the file is not JSON.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
