"""Every palio record is frozen, typed, and has one canonical JSON form with one digest."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any, TypeVar

import msgspec

from palio.records.faults import InputError

SCHEMA_VERSION = "1.1"
"""Version of the record shapes in this package; it stands in every artefact that palio writes.

1.1: reasoning verdicts hold opinions, flags and the reason why they are unjudged.
"""

T = TypeVar("T")


def current_schema() -> str:
    """Default factory of every `schema_version` field.

    A factory, because a plain default would be left out of the JSON form, and the version must
    stand in every artefact.
    """
    return SCHEMA_VERSION


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every palio record: immutable, keyword-only, defaults left out of the JSON form."""


class CanonicalRecord(Record, frozen=True):
    """A record that leaves a default out of its JSON form wherever the value came from.

    msgspec leaves out what *is* the default, not what equals it: a field read from a file that
    states "rollout" would be written, one that was never set would not. Records with a default
    that is no singleton of Python, and whose bytes are compared or digested, derive from this.
    """

    def __post_init__(self) -> None:
        """Hold the default itself in place of an equal value."""
        for name, default in _defaults(type(self)):
            value = getattr(self, name)
            if value is not default and value == default:
                msgspec.structs.force_setattr(self, name, default)


@cache
def _defaults(kind: type[Record]) -> tuple[tuple[str, Any], ...]:
    """The defaults that equal values need not be: not None, booleans, 0 or anything empty."""
    found = ((field.name, field.default) for field in msgspec.structs.fields(kind))
    return tuple(
        (name, default)
        for name, default in found
        if default is not msgspec.NODEFAULT
        and not isinstance(default, bool)
        and (default or isinstance(default, float))
    )


def canonical_json(value: Any) -> bytes:
    """The canonical JSON form of a record or of plain JSON data, as UTF-8 bytes.

    Keys are sorted by code point, there is no white space, text stays unescaped. Two equal records
    have equal bytes on every machine and Python version.

    Raises:
        InputError: the value holds NaN, an infinity or a lone surrogate, none of which JSON has.
    """
    plain = msgspec.to_builtins(value)
    try:
        text = json.dumps(
            plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True
        )
        return text.encode("utf-8")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"this {type(value).__name__} has no canonical JSON form: {error}",
            remedy="replace NaN, infinities and lone surrogates before making a record",
        ) from error


def digest(value: Any) -> str:
    """``sha256:<64 hex digits>`` of the canonical JSON form of `value`."""
    return bytes_digest(canonical_json(value))


def bytes_digest(data: bytes) -> str:
    """``sha256:<64 hex digits>`` of raw bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def to_json(record: Any) -> bytes:
    """Fast JSON bytes of a record, in field order; use `canonical_json` for anything digested."""
    return msgspec.json.encode(record)


def from_json(data: bytes | str, kind: type[T], *, where: str = "") -> T:
    """Decode JSON into a record type.

    Args:
        data: one JSON document.
        kind: the record type to decode into.
        where: file and row, named in the error.

    Raises:
        InputError: the bytes are not JSON or do not have the type's shape; names `where`.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # unions have no __name__
        name = getattr(kind, "__name__", str(kind))
        raise InputError(f"not a valid {name}: {error}", where=where) from error
