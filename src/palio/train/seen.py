"""What a stage saw: problems that it rolled out, and products that results showed on the way.

Stages that keep their rollouts are read from those; the others write a line a rollout as they go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palio.records import Message, Record, from_json, to_json

if TYPE_CHECKING:
    from palio.train.rl.rollouts import Roller, Rollout
    from palio.train.rl.sampler import Sampler

SEEN = "seen.jsonl"


class Seen(Record, frozen=True):
    """One rollout, or one row of a corpus.

    Attributes:
        products: ids that tool results show, sorted.
    """

    problem_id: str
    products: tuple[str, ...] = ()


def products_shown(messages: Iterable[Message]) -> tuple[str, ...]:
    """The product ids in the tool results of a conversation, sorted."""
    found: set[str] = set()
    for message in messages:
        if message.role == "tool" and message.content:
            # warnings stand in lines of their own behind the result
            found.update(_ids(_parsed(message.content.split("\n", 1)[0])))
    return tuple(sorted(found))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        held = value.get("product_id")
        if isinstance(held, str | int):
            yield str(held)
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _ids(each)


class Witness:
    """A roller that leaves a line for each rollout in the stage's folder.

    Args:
        roller: makes the rollouts.
        out: the stage's folder.
    """

    def __init__(self, roller: Roller, out: Path) -> None:
        self._roller = roller
        self._path = out / SEEN

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of the roller."""
        return self._roller.keys

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        """Those of the roller; their lines are written in one piece, whatever runs beside."""
        rollouts = self._roller.roll(keys, seeds, sampler)
        lines = b"".join(to_json(_seen(each)) + b"\n" for each in rollouts)
        with self._path.open("ab", buffering=0) as file:
            file.write(lines)
        return rollouts


def _seen(rollout: Rollout) -> Seen:
    """A rollout of a teacher's step has the step's key, and no more to show than its row."""
    record = rollout.trajectory
    if record is None:
        return Seen(problem_id=rollout.key.rsplit("/", 1)[0])
    return Seen(problem_id=record.problem_id, products=products_shown(record.messages))


def read_seen(folder: Path) -> list[Seen] | None:
    """The lines of a stage; None where it left none. A last line torn by a kill is left out."""
    path = folder / SEEN
    if not path.is_file():
        return None
    lines = path.read_bytes().splitlines(keepends=True)
    return [
        from_json(line, Seen, where=f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.endswith(b"\n")
    ]
