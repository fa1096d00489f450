"""What the parsed calls of a clean row say: ids, grounding, ranking signals, each in one look.

Equal by test to `palio.corpus.conversation` and `palio.corpus.ranking`, which parse for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from palio.corpus.conversation import CHECKS, RECOMMEND, SEARCHES, ids_in, mentions, tells
from palio.corpus.ranking import DEEP, MANY_QUERIES
from palio.corpus.shards.clean import Told
from palio.judging.answers import product_ids
from palio.records import ToolCall

_sorted = msgspec.json.Encoder(order="sorted").encode
_many = msgspec.json.Decoder(list[Any]).decode
_BREAK = os.urandom(16).hex()
_BETWEEN = f',"{_BREAK}",'


def parsed_of(calls: Sequence[ToolCall]) -> list[dict[str, Any]] | None:
    """The arguments of one or more calls; None when those of any are no JSON object.

    They are decoded together, a word between them that nobody can guess: where every second value
    is that word, no text began or ended in another one's place.
    """
    texts = _BETWEEN.join([call.function.arguments for call in calls])
    try:
        held = _many(f"[{texts}]")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    parsed, breaks = held[::2], held[1::2]
    if len(parsed) != len(calls) or breaks.count(_BREAK) != len(calls) - 1:
        return None
    return parsed if all(type(said) is dict for said in parsed) else None


def ids_of(arguments: dict[str, Any]) -> tuple[str, ...]:
    """`ids_in`, which need not be asked about the usual single id."""
    value = arguments.get("product_ids")
    return (value,) if type(value) is str and value.isalnum() else ids_in(arguments)


def names_them(wanted: tuple[str, ...]) -> bool:
    """Whether the answer of record, the ids with commas between, names the same ids."""
    if len(wanted) == 1 and wanted[0].isalnum():
        return True
    return product_ids(",".join(wanted)) == wanted


def are_grounded(wanted: Sequence[str], calls: Sequence[ToolCall], results: Sequence[str]) -> bool:
    """`palio.corpus.conversation.ungrounded_ids` finds none."""
    return all(_is_told(name, calls, results) for name in wanted)


def _is_told(name: str, calls: Sequence[ToolCall], results: Sequence[str]) -> bool:
    key = f'"product_id":"{name}"'  # as palio's own tools write it: no need to look closer
    for call, result in zip(calls, results, strict=False):
        arguments = call.function.arguments
        if name in arguments and mentions(arguments, name):
            continue
        if key in result or (name in result and tells(result, name)):
            return True
    return False


def signals_of(
    told: Told, names: Sequence[str], parsed: Sequence[dict[str, Any]], wanted: Sequence[str]
) -> tuple[float, float, float, float]:
    """`palio.corpus.ranking.signals`, for calls that are already parsed."""
    asked: set[tuple[str, Any]] = set()
    checked: set[str] = set()
    left = names.index(RECOMMEND)
    for name, said in zip(names, parsed, strict=True):
        if left > 0 and name in CHECKS:
            checked.update(ids_of(said))
        left -= 1
        if len(said) == 1:  # one text, which most calls are, needs no encoding
            (only,) = said.items()
            if type(only[1]) is str:
                asked.add((name, only))
                continue
        asked.add((name, _sorted(said)))
    searches = [name for name, _ in asked if name in SEARCHES]
    return (
        min(1.0, (told.thinking + len(names)) / DEEP),
        min(1.0, max(0, len(searches) - 1) / (MANY_QUERIES - 1)),
        sum(1 for one in wanted if one in checked) / len(wanted),
        (told.acting / told.turns) * (len(asked) / len(names)),
    )
