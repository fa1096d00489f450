"""What a stage saw: problems that it rolled out, products that results showed, and every token.

Stages that keep their rollouts are read from those; the others write a line a rollout as they go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palio.records import Message, Record, digest, to_json
from palio.world.appended import mend_end, whole_records

if TYPE_CHECKING:
    from palio.train.rl.rollouts import Roller, Rollout
    from palio.train.rl.sampler import Sampler

SEEN = "seen.jsonl"


class Seen(Record, frozen=True):
    """One rollout, or one row of a corpus.

    Attributes:
        products: ids that tool results show, sorted.
        seed: of the rollout; with the problem it tells a rollout from all others of the stage.
        row: digest of its ids and its mask; "" for a row of a corpus.
    """

    problem_id: str
    products: tuple[str, ...] = ()
    seed: int = 0
    row: str = ""


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

    What a kill left half-written is cut off first: in several processes each makes its witness
    before any of them rolls out (`hooks.rolled`).

    Args:
        roller: makes the rollouts.
        out: the stage's folder.
    """

    def __init__(self, roller: Roller, out: Path) -> None:
        self._roller = roller
        self._path = out / SEEN
        mend_end(self._path)

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of the roller."""
        return self._roller.keys

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        """Those of the roller; their lines are written in one piece, whatever runs beside."""
        rollouts = self._roller.roll(keys, seeds, sampler)
        pairs = zip(rollouts, seeds, strict=True)
        lines = b"".join(to_json(_seen(each, seed)) + b"\n" for each, seed in pairs)
        with self._path.open("ab", buffering=0) as file:
            left = memoryview(lines)
            while left:  # a disk that is nearly full takes a part, and says so the next time
                left = left[file.write(left) :]
        return rollouts


def _seen(rollout: Rollout, seed: int) -> Seen:
    """A rollout of a teacher's step has the step's key, and no more to show than its row."""
    record = rollout.trajectory
    row = digest([rollout.prompt, rollout.completion, [int(one) for one in rollout.mask]])
    if record is None:
        return Seen(problem_id=rollout.key.rsplit("/", 1)[0], seed=seed, row=row)
    shown = products_shown(record.messages)
    return Seen(problem_id=record.problem_id, products=shown, seed=seed, row=row)


def rolled_digest(folder: Path) -> str:
    """Digest of the ids and masks of all rollouts that a stage was trained on.

    What a killed run had rolled out beyond its last state is rolled out again with the same seed:
    the last one counts, so that it is the digest of a run that was not killed.
    """
    last = {(each.problem_id, each.seed): each.row for each in read_seen(folder) or ()}
    return digest([[*key, last[key]] for key in sorted(last)])


def read_seen(folder: Path) -> list[Seen] | None:
    """The lines of a stage; None where it left none. A last line torn by a kill is left out."""
    path = folder / SEEN
    return list(whole_records(path, Seen)) if path.is_file() else None
