"""Bytes of a record become JSON data that every later step can hold; each repair is listed."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import msgspec

from palio.broker.wire import clean_text, plain_json
from palio.corpus.readers.losses import Loss, LossList, UnreadableError

NUL = b"\\u0000"


class Decoded(NamedTuple):
    """JSON data without NUL, lone surrogates and non-finite numbers, and what was repaired."""

    value: Any
    losses: tuple[Loss, ...] = ()


def decode(data: bytes) -> Decoded:
    """One JSON document.

    A clean document costs one pass of msgspec. Others are repaired: NUL, lone surrogates and bytes
    that are no UTF-8 become U+FFFD, NaN and infinities become text, raw control characters inside
    strings are taken as they are.

    Raises:
        UnreadableError: "json" when it is none, "too_deep" when it nests deeper than Python takes.
    """
    try:
        value = msgspec.json.decode(data)
    except RecursionError as error:
        raise UnreadableError("too_deep", "the record nests too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _repaired(data)
    if NUL in data:
        return _cleaned(value, LossList())
    return Decoded(value)


def split_documents(data: bytes) -> list[tuple[int, bytes]]:
    """(lines before it, bytes) of each of the JSON documents that stand one after another.

    Raises:
        UnreadableError: as `decode`, when the text is no sequence of documents.
    """
    # surrogateescape gives every byte back as it was, those that are no UTF-8 included
    text = data.decode(errors="surrogateescape").removeprefix("\ufeff")
    decoder = _decoder(LossList())
    found: list[tuple[int, bytes]] = []
    at = line = end = 0
    while (at := _skip_space(text, end)) < len(text):
        line += text.count("\n", end, at)
        try:
            _, end = decoder.raw_decode(text, at)
        except RecursionError as error:
            raise UnreadableError("too_deep", "the record nests too deeply") from error
        except ValueError as error:
            raise UnreadableError("json", str(error)[:200]) from error
        found.append((line, text[at:end].encode(errors="surrogateescape")))
        line += text.count("\n", at, end)
    return found


def json_text(value: Any) -> str:
    """Compact JSON text of a decoded value, in its own key order.

    Raises:
        InputError: the value nests too deeply or refers to itself.
    """
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return plain_json(value)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n\x1e":
        at += 1
    return at


def _repaired(data: bytes) -> Decoded:
    losses = LossList()
    text = _text(data, losses)
    try:
        value = _decoder(losses).decode(text)
    except RecursionError as error:
        raise UnreadableError("too_deep", "the record nests too deeply") from error
    except ValueError as error:
        raise UnreadableError("json", str(error)[:200]) from error
    return _cleaned(value, losses)


def _text(data: bytes, losses: LossList) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        losses.add("bad_utf8", "")
        text = data.decode(errors="replace")
    return text.removeprefix("\ufeff")


def _decoder(losses: LossList) -> json.JSONDecoder:
    def constant(name: str) -> str:
        losses.add("not_finite", "")
        return name

    def number(digits: str) -> float | str:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    return json.JSONDecoder(strict=False, parse_constant=constant, parse_float=number)


def _cleaned(value: Any, losses: LossList) -> Decoded:
    try:
        value = _clean(value, "", losses)
    except RecursionError as error:
        raise UnreadableError("too_deep", "the record nests too deeply") from error
    return Decoded(value, tuple(losses.all))


def _clean(value: Any, where: str, losses: LossList) -> Any:
    """`value` with every text made clean; a loss for each text that was not."""
    if isinstance(value, str):
        text = clean_text(value)
        if text != value:
            without = value.replace("\x00", "\ufffd")
            if without != value:
                losses.add("nul", where)
            if without != text:
                losses.add("surrogate", where)
        return text
    if isinstance(value, dict):
        return {
            _clean(key, f"{where} key", losses): _clean(
                inner, f"{where}.{key}" if where else str(key), losses
            )
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_clean(inner, f"{where}[{at}]", losses) for at, inner in enumerate(value)]
    return value
