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
    where, trajectories = stored(folder)
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

    appended = append_verdicts(where / VERDICTS, verdicts())
    counts = {
        "trajectories": bins.total(),
        "appended": appended,
        "quality": dict(sorted(bins.items())),
        "axis": dict(sorted(axes.items())),
    }
    summarise(where / VERDICTS, counts, as_json=as_json)


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
