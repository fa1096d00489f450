"""Traces of trained tiny models as labelled rows; their labels were given by hand."""

from __future__ import annotations

import io
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zstandard
from episode import AGENTS

from palio.evaluate.calibration import LabelledRow
from palio.records import AgentRef, Trajectory, bytes_digest


def traces(folder: Path, rng: random.Random) -> Iterator[LabelledRow]:
    """Rows of traces.toml; the agent gets one of the set's names, which tell nothing."""
    held = _held(folder / "traces.jsonl.zst")
    labels = tomllib.loads((folder / "traces.toml").read_text("utf-8"))["trace"]
    seen: dict[float, int] = {}
    for label in labels:
        value = label["label"]
        seen[value] = seen.get(value, 0) + 1
        name = f"trace/{label['trace']:03}"
        trajectory = msgspec.structs.replace(
            held[label["trace"]],
            trajectory_id=bytes_digest(name.encode())[7:39],
            agent=AgentRef(name=rng.choice(AGENTS), kind="external"),
            source="labelled set",
            tools=(),  # 5 kB of schemas that no other row has would tell traces by their size
        )
        yield LabelledRow(
            row_id=name,
            trajectory=trajectory,
            label=value,
            rationale=label["why"],
            population="trace",
            split=("development", "heldout")[seen[value] % 2],
            language="en",
            channel="reasoning",
            author=f"palio, read by hand; the model had {label['model']}",
        )


def _held(file: Path) -> list[Trajectory]:
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes())).read()
    return [msgspec.json.decode(line, type=Trajectory) for line in data.splitlines()]
