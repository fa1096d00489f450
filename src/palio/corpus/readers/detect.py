"""Each record's format is told by its shape alone, so that one file may mix them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from palio.corpus.readers.atif import is_atif, read_atif
from palio.corpus.readers.chat import (
    is_chat_row,
    is_exchange,
    is_pair_row,
    read_chat,
    read_exchange,
    read_pair,
)
from palio.corpus.readers.dialogue import (
    is_dialogue,
    is_envelope,
    is_step,
    is_upstream,
    read_dialogue,
    read_envelope,
)
from palio.corpus.readers.evaluation import is_evaluation, read_evaluation
from palio.corpus.readers.items import has_items, is_items_row, read_items
from palio.corpus.readers.losses import Imported, UnreadableError
from palio.corpus.readers.proxy import is_proxy_call
from palio.corpus.readers.recording import read_log
from palio.corpus.readers.rendered import is_dump, read_dump
from palio.corpus.readers.sharegpt import is_sharegpt, read_sharegpt
from palio.records import Trajectory


class Format(NamedTuple):
    """One format: its name, how it is told, how it is read."""

    name: str
    told: Callable[[Any], bool]
    read: Callable[[Any, str], Iterable[Imported]]


def _one(read: Callable[[Any, str], Imported]) -> Callable[[Any, str], Iterable[Imported]]:
    return lambda value, source: (read(value, source),)


def _is_own(row: Any) -> bool:
    return isinstance(row, dict) and {"trajectory_id", "agent", "events", "messages"} <= set(row)


def _read_own(row: Mapping[str, Any], source: str) -> Imported:
    del source  # a trajectory of palio's own says where it comes from
    try:
        return Imported(msgspec.convert(row, Trajectory), ())
    except msgspec.ValidationError as error:
        raise UnreadableError("type", str(error)) from error


def _is_message_list(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and (
            all(isinstance(item, dict) and ("role" in item or "from" in item) for item in value)
            or has_items(value)
        )
    )


def _read_message_list(value: list[Any], source: str) -> Imported:
    if any("from" in item for item in value):
        return read_sharegpt({"conversations": value}, source)
    return read_chat({"messages": value}, source)


FORMATS: tuple[Format, ...] = (
    Format("palio", _is_own, _one(_read_own)),
    Format("atif", is_atif, read_atif),
    Format("arena-envelope", is_envelope, _one(read_envelope)),
    Format("upstream-rollout", is_upstream, _one(read_dialogue)),
    Format("arena-dialogue", is_dialogue, _one(read_dialogue)),
    Format("arena-step", is_step, _one(lambda value, source: read_dialogue([value], source))),
    Format("request-log", is_proxy_call, _one(lambda row, source: read_log([row], source, ""))),
    Format("chat", is_chat_row, _one(read_chat)),
    Format("sharegpt", is_sharegpt, _one(read_sharegpt)),
    Format("evaluation", is_evaluation, _one(read_evaluation)),
    Format("completion", is_exchange, _one(read_exchange)),
    Format("responses", is_items_row, _one(read_items)),
    Format("prompt-completion", is_pair_row, _one(read_pair)),
    Format("rl-dump", is_dump, _one(read_dump)),
    Format("message-list", _is_message_list, _one(_read_message_list)),
)
"""In the order in which they are tried: the most telling marks first."""

NAMES = tuple(known.name for known in FORMATS)


def format_of(value: Any) -> str:
    """Name of the first format that a decoded record has the shape of, "" when of none."""
    return next((known.name for known in FORMATS if known.told(value)), "")


def is_of(name: str, value: Any) -> bool:
    """Whether a decoded record has the shape of the format called `name`."""
    return any(known.told(value) for known in FORMATS if known.name == name)


def read_record(value: Any, source: str, name: str = "auto") -> Iterator[tuple[str, Imported]]:
    """(format, trajectory with losses) for all that one decoded record holds.

    Args:
        value: JSON data.
        source: the file's name; the trajectory's source is ``FORMAT:FILE``.
        name: one of `NAMES`, or "auto".

    Raises:
        UnreadableError: "not_a_trace" when it has no known shape, or what the reader says.
    """
    if name == "auto":
        name = format_of(value)
    known = next((known for known in FORMATS if known.name == name), None)
    if known is None or not known.told(value):
        raise UnreadableError("not_a_trace", f"{_shape(value)} is no {name or 'known'} trace")
    for found in known.read(value, f"{name}:{source}"):
        yield name, found


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(str(key)[:20] for key in list(value)[:6])
        return f"an object with {keys}" if keys else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"
