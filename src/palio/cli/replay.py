"""palio replay: ask the world again for everything that a trajectory says it answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from palio.corpus.replay import Replay

SHOWN = 20
"""Differences shown to people; JSON has all."""


def replay(
    trajectories: list[Path] = typer.Argument(..., help="Trajectory files or folders."),
    catalogue: list[Path] = typer.Option(..., help="Catalogues in which they were recorded."),
    world: str = WORLD,
    as_json: bool = typer.Option(False, "--json", help="Print JSON, one member a trajectory."),
) -> None:
    """Re-execute recorded calls: match, drift or forged for each observation.

    Exit code 0 if everything matches, 1 if anything drifted, was forged, or could not be replayed.
    """
    from palio.corpus.reading import TraceReader
    from palio.corpus.replay import Worlds, totals
    from palio.world.catalogue import read_catalogues
    from palio.world.world import config_named

    held, rejects = read_catalogues(catalogue)
    warn_of(rejects)
    worlds = Worlds(held, config_named(world))
    reader = TraceReader(trajectories)
    replays: list[Replay] = []
    missing: dict[str, int] = {}
    for trajectory in reader:
        replayer = worlds.replayer(trajectory)
        if replayer is None:
            missing[trajectory.catalogue] = missing.get(trajectory.catalogue, 0) + 1
        else:
            replays.append(replayer.replay(trajectory))
    summary: dict[str, Any] = {
        "trajectories": len(replays),
        "observations": totals(replays),
        "worst": {
            status: sum(each.worst == status for each in replays)
            for status in ("match", "drift", "forged")
        },
        "catalogue_missing": missing,
        "unreadable": len(reader.rejects),
    }
    _show(replays, summary, as_json=as_json)
    wrong = summary["worst"]["drift"] + summary["worst"]["forged"] + len(missing)
    if wrong or reader.rejects:
        raise typer.Exit(1)


def _show(replays: list[Replay], summary: dict[str, Any], *, as_json: bool) -> None:
    from palio.records import to_json

    if as_json:
        rows = [json.loads(to_json(each)) for each in replays]
        typer.echo(json.dumps({**summary, "replays": rows}))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    counts = summary["observations"]
    table = Table("trajectories", "observations", *counts)
    table.add_row(
        f"{len(replays):,}", f"{sum(counts.values()):,}", *(f"{n:,}" for n in counts.values())
    )
    console.print(table)
    wrong = [
        (each, seen)
        for each in replays
        for seen in each.observations
        if seen.status in ("drift", "forged")
    ]
    for each, seen in wrong[:SHOWN]:
        style = "red" if seen.status == "forged" else "yellow"
        where = f"{each.trajectory_id} ({each.agent}) observation {seen.index}, {seen.tool}"
        console.print(f"[{style}]{seen.status}[/] {escape(f'{where}: {seen.detail}')}")
    if len(wrong) > SHOWN:
        console.print(f"and {len(wrong) - SHOWN:,} more; --json has all")
    for name, count in summary["catalogue_missing"].items():
        console.print(f"[red]{count:,} trajectories need catalogue {escape(name or '(none)')}[/]")
    if summary["unreadable"]:
        console.print(f"[red]{summary['unreadable']:,} lines are no trajectories[/]")
