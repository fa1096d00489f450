"""What the parsed calls of a clean row say: ids, grounding, ranking signals, each in one look.

Equal by test to `palio.corpus.conversation` and `palio.corpus.ranking`, which parse for themselves.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from palio.corpus.conversation import CHECKS, RECOMMEND, SEARCHES, ids_in, mentions, tells
from palio.corpus.ranking import DEEP, MANY_QUERIES
from palio.corpus.shards.clean import Told
from palio.judging.answers import product_ids
from palio.records import Ending
from palio.world.arguments import CATALOGUE_TOOLS

_sorted = msgspec.json.Encoder(order="sorted").encode
_many = msgspec.json.Decoder(list[Any]).decode
_BREAK = os.urandom(16).hex()
_BETWEEN = f',"{_BREAK}",'


def parsed_of(arguments: Sequence[str]) -> list[dict[str, Any]] | None:
    """The arguments of one or more calls; None when those of any are no JSON object.

    They are decoded together, a word between them that nobody can guess: where every second value
    is that word, no text began or ended in another one's place.
    """
    try:
        held = _many(f"[{_BETWEEN.join(arguments)}]")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if len(held) != 2 * len(arguments) - 1 or held[1::2].count(_BREAK) != len(arguments) - 1:
        return None
    parsed = held[::2]
    return parsed if [*map(type, parsed)].count(dict) == len(parsed) else None


def ids_of(arguments: dict[str, Any]) -> tuple[str, ...]:
    """`ids_in`, which need not be asked about the usual single id."""
    value = arguments.get("product_ids")
    return (value,) if type(value) is str and value.isalnum() else ids_in(arguments)


def names_them(wanted: tuple[str, ...]) -> bool:
    """Whether the answer of record, the ids with commas between, names the same ids."""
    if len(wanted) == 1 and wanted[0].isalnum():
        return True
    return product_ids(",".join(wanted)) == wanted


def are_grounded(wanted: Sequence[str], asked: Sequence[str], results: Sequence[str]) -> bool:
    """`palio.corpus.conversation.ungrounded_ids` finds none; `asked` are arguments of calls."""
    return all(_is_told(name, asked, results) for name in wanted)


def _is_told(name: str, asked: Sequence[str], results: Sequence[str]) -> bool:
    key = f'"product_id":"{name}"'  # as palio's own tools write it: no need to look closer
    for arguments, result in zip(asked, results, strict=False):
        if name in arguments and mentions(arguments, name):
            continue
        if key in result or (name in result and tells(result, name)):
            return True
    return False


class Moves(NamedTuple):
    """What the names of a row's calls decide.

    Attributes:
        at: place of the recommendation, which is answered.
        catalogue: calls of the catalogue's tools that are answered.
        checks: places before the recommendation where details are read; searches: how many.
        ending: of the run.
    """

    at: int
    catalogue: int
    checks: tuple[int, ...]
    searches: int
    ending: Ending


@lru_cache(maxsize=4096)
def moves_of(names: tuple[str, ...], done: int, terminal: tuple[str, ...]) -> Moves | None:
    """The moves of a row whose first `done` calls are answered; None where a gate may drop it."""
    if names.count(RECOMMEND) != 1 or (at := names.index(RECOMMEND)) >= done:
        return None
    if any(name not in terminal for name in names[done:]):
        return None
    return Moves(
        at,
        sum(name in CATALOGUE_TOOLS for name in names[:done]),
        tuple(place for place, name in enumerate(names[:at]) if name in CHECKS),
        sum(name in SEARCHES for name in names),
        ending_of(names),
    )


def ending_of(names: Container[str]) -> Ending:
    """How a run ended that made these calls."""
    return Ending.terminated if "terminate" in names else Ending.returned


def signals_of(
    told: Told, moves: Moves, parsed: Sequence[dict[str, Any]], wanted: Sequence[str]
) -> tuple[float, float, float, float]:
    """`palio.corpus.ranking.signals`, for calls that are already parsed."""
    pairs = [*zip(told.talk.tools, parsed, strict=True)]
    different, searches = len(pairs), moves.searches
    if [*map(pairs.index, pairs)] != [*range(different)]:  # equal values may yet be written apart
        asked = {(name, _sorted(said)) for name, said in pairs}
        different, searches = len(asked), sum(name in SEARCHES for name, _ in asked)
    checked = [name for place in moves.checks for name in ids_of(parsed[place])]
    return (
        min(1.0, (told.thinking + len(parsed)) / DEEP),
        min(1.0, max(0, searches - 1) / (MANY_QUERIES - 1)),
        sum([name in checked for name in wanted]) / len(wanted),
        (told.acting / told.turns) * (different / len(pairs)),
    )
