"""Write the labelled set: the same seed, the same bytes.

python scripts/labelled/build.py            # writes the set into the package
python scripts/labelled/build.py --check    # rebuilds and compares, writes nothing
"""

from __future__ import annotations

import argparse
import random
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from play import AUTHOR, play
from scenes import Scene, scenes, worlds
from slips import slips
from traces import traces

from palio.evaluate.calibration import LabelledRow

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "src" / "palio" / "judging" / "labelled" / "set.jsonl.zst"
SEED = 4051
EACH = 2
"""Scenes that a script is played in."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    rows = list(build(SEED))
    wrong = [f"{row.row_id}: {slip}" for row in rows for slip in slips(row)]
    if wrong:
        print("\n".join(wrong))
        return 1
    data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    packed = zstandard.ZstdCompressor(level=19).compress(data)
    if arguments.check:
        same = zstandard.ZstdDecompressor().decompress(TARGET.read_bytes()) == data
        print("the set is what its generator makes" if same else "the set differs")
        return 0 if same else 1
    TARGET.write_bytes(packed)
    print(f"{len(rows)} rows, {len(packed):,} bytes")
    return 0


def build(seed: int) -> Iterator[LabelledRow]:
    """Every row: templates, pairs, traces."""
    rng = random.Random(seed)
    stock = Stock(seed, rng)
    for script in _scripts("templates.toml", "template"):
        for place in range(EACH):
            yield _template_row(script, stock.take(script, place), place, rng)
    for script in _scripts("pairs.toml", "pair"):
        for place in range(EACH):
            yield from _pair_rows(script, stock.take(script, place), place, rng)
    yield from traces(HERE, rng)


def _scripts(file: str, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((HERE / file).read_text("utf-8"))[table]
    return found


class Stock:
    """Scenes of both worlds; a scene is told once."""

    def __init__(self, seed: int, rng: random.Random) -> None:
        self._held = {
            world.config.rows: list(scenes(synthesis, world, rng))
            for synthesis, world in worlds(seed)
        }

    def take(self, script: dict[str, Any], place: int) -> Scene:
        """The next scene that the script can be told in; worlds take turns."""
        only = set(script.get("only", ()))
        rows = [name for name in ("compact", "full") if not only & {"compact", "full"} - {name}]
        held = self._held[rows[place % len(rows)]]
        kinds = only - {"compact", "full"}
        for number, scene in enumerate(held):
            if not kinds or scene.problem.kind in kinds:
                return held.pop(number)
        raise RuntimeError(f"no scene is left for {script['name']}")


def _split(script: dict[str, Any]) -> str:
    """Development or held-out, by script: all scenes of a script fall on one side."""
    return _SIDES[script["name"]]


def _sides() -> dict[str, str]:
    """Half of the scripts of each label (pairs: of each pair of labels) to each side."""
    sides: dict[str, str] = {}
    rng = random.Random(SEED + 1)
    groups: dict[str, list[str]] = {}
    for file, table in (("templates.toml", "template"), ("pairs.toml", "pair")):
        for script in _scripts(file, table):
            groups.setdefault(f"{table} {script['label']}", []).append(script["name"])
    turn = 0
    for names in groups.values():
        rng.shuffle(names)
        for name in names:
            sides[name] = ("development", "heldout")[turn % 2]
            turn += 1
    return sides


def _template_row(
    script: dict[str, Any], scene: Scene, place: int, rng: random.Random
) -> LabelledRow:
    name = f"template/{script['name']}/{place}"
    still = script.get("still", False)
    trajectory, channel = play(scene, script["steps"], rng, key=name, still=still)
    return LabelledRow(
        row_id=name,
        trajectory=trajectory,
        label=script["label"],
        rationale=script["why"],
        population=f"template-{scene.rows}",
        script=script["name"],
        split=_split(script),
        language=script.get("language", "en"),
        channel=channel,
        author=AUTHOR,
    )


def _pair_rows(
    script: dict[str, Any], scene: Scene, place: int, rng: random.Random
) -> Iterator[LabelledRow]:
    pair = f"pair/{script['name']}/{place}"
    seed = rng.randrange(2**32)
    for member, label in enumerate(script["label"]):
        steps = script.get("other", script["steps"]) if member else script["steps"]
        change = script.get("change", "") if member else ""
        alike = random.Random(seed)  # agent, channel and clock are those of the other member
        still, key = script.get("still", False), f"{pair}/{member}"
        trajectory, channel = play(scene, steps, alike, key=key, change=change, still=still)
        yield LabelledRow(
            row_id=f"{pair}/{member}",
            trajectory=trajectory,
            label=label,
            rationale=script["why"][member],
            population=f"pair-{script['kind']}",
            pair=pair,
            script=script["name"],
            split=_split(script),
            language="en",
            channel=channel,
            author=AUTHOR,
        )


_SIDES = _sides()

if __name__ == "__main__":
    sys.exit(main())
