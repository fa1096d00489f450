"""A run folder as judges and scorers use it: its trajectories, and what its verdicts gained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from palio.records import Trajectory

TRAJECTORIES = "trajectories.jsonl"
RUN_FOLDER = typer.Argument(..., help="Run folder with trajectories.jsonl, or such a file.")


def stored(folder: Path) -> tuple[Path, Iterator[Trajectory]]:
    """The run folder and its trajectories, with progress on stderr.

    A folder's trajectories.jsonl is read, or else every shard in it but the verdict file.
    """
    from rich.console import Console
    from rich.progress import track

    from palio.judging.store import VERDICTS
    from palio.rollout.reading import read_trajectories, trajectory_files

    single = folder / TRAJECTORIES
    files = [single] if single.is_file() else trajectory_files(folder)
    rows = (row for file in files if file.name != VERDICTS for row in read_trajectories(file))
    shown = track(rows, description="trajectories", console=Console(stderr=True), transient=True)
    return (folder if folder.is_dir() else folder.parent), iter(shown)


def summarise(file: Path, counts: dict[str, Any], *, as_json: bool) -> None:
    """What was appended where, for people or for programs."""
    if as_json:
        typer.echo(json.dumps({"verdicts": str(file), **counts}, indent=2))
        return
    typer.echo(f"verdicts in {file}")
    for name, value in counts.items():
        shown = (
            value
            if not isinstance(value, dict)
            else "  ".join(f"{key}: {number}" for key, number in value.items())
        )
        typer.echo(f"  {name}: {shown}")
