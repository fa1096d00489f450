"""palio judge: reasoning and richness verdicts on stored runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from palio.records import Trajectory

app = typer.Typer(help="Reasoning judges.", no_args_is_help=True)

TRAJECTORIES = "trajectories.jsonl"


@app.callback()
def main() -> None:
    """Judge the reasoning of stored runs."""


@app.command()
def run(
    folder: Path = typer.Argument(..., help="Run folder with trajectories.jsonl, or such a file."),
    agentic: float = typer.Option(0.9, min=0, max=1, help="Richness from which a run is Axis A."),
    subtask: float = typer.Option(0.1, min=0, max=1, help="Richness up to which it is Axis B."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Judge stored trajectories with evidence-v1; old verdicts are kept."""
    from palio.judging import EvidenceJudge, richness_verdict
    from palio.judging.store import VERDICTS, append_verdicts
    from palio.records import Verdict

    judge = EvidenceJudge()
    path, trajectories = stored(folder)
    bins: Counter[str] = Counter()
    axes: Counter[str] = Counter()

    def verdicts() -> Iterator[Verdict]:
        for trajectory in trajectories:
            reasoning = judge.verdict(trajectory)
            richness = richness_verdict(trajectory, agentic, subtask)
            bins["unjudged" if reasoning.quality is None else f"{reasoning.quality:g}"] += 1
            axes[richness.axis] += 1
            yield reasoning
            yield richness

    appended = append_verdicts(path.parent / VERDICTS, verdicts())
    counts = {
        "trajectories": bins.total(),
        "appended": appended,
        "quality": dict(sorted(bins.items())),
        "axis": dict(sorted(axes.items())),
    }
    summarise(path.parent / VERDICTS, counts, as_json=as_json)


def stored(folder: Path) -> tuple[Path, Iterator[Trajectory]]:
    """The trajectory file of a run folder and its trajectories, with progress on stderr."""
    from rich.console import Console
    from rich.progress import track

    from palio.records import InputError

    path = folder / TRAJECTORIES if folder.is_dir() else folder
    if not path.is_file():
        raise InputError("no trajectories", where=str(path), remedy="name a run folder")
    rows = track(
        _trajectories(path),
        description="judging",
        console=Console(stderr=True),
        transient=True,
    )
    return path, iter(rows)


def _trajectories(path: Path) -> Iterator[Trajectory]:
    from palio.records import Trajectory, from_json
    from palio.world.lines import read_lines

    for line in read_lines(path, max_bytes=1 << 28):
        yield from_json(line.data, Trajectory, where=f"{path}:{line.number}")


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
