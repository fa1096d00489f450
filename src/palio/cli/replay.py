"""palio replay: ask the world again for what it answered, or run a recorded run again whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from palio.corpus.replay import Replay
    from palio.sandbox.spec import Driver
    from palio.world.world import World

SHOWN = 20
"""Differences shown to people; JSON has all."""


def replay(
    trajectories: list[Path] = typer.Argument(None, help="Trajectory files or folders."),
    catalogue: list[Path] = typer.Option([], help="Catalogues in which they were recorded."),
    world: str = WORLD,
    run: Path | None = typer.Option(
        None, help="Run folder: check its journal and run its agents again, instead."
    ),
    problem: list[str] = typer.Option([], help="With --run: only this problem; repeatable."),
    check: bool = typer.Option(False, "--check", help="With --run: only check the journal."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, one member a trajectory."),
) -> None:
    """Re-execute recorded calls: match, drift or forged for each observation.

    With --run RUN each agent of a run folder is run again in a driver of the same isolation,
    against the recorded replies of its model (and of the tools, unless --catalogue is given): the
    new record must be identical, times aside. The journal's chain is checked first.

    Exit code 0 if everything matches, 1 if anything drifted, was forged, was changed on disk,
    departed, or could not be replayed.
    """
    if run is not None:
        _again(run, problem, catalogue, world, check=check, as_json=as_json)
        return
    _need(trajectories, catalogue)
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


def _need(trajectories: list[Path], catalogue: list[Path]) -> None:
    from palio.records import ConfigError

    if not trajectories or not catalogue:
        raise ConfigError(
            "nothing to replay is named",
            remedy="name trajectories and --catalogue, or a run folder with --run",
        )


def _again(
    run: Path, problems: list[str], catalogue: list[Path], world: str, *, check: bool, as_json: bool
) -> None:
    from contextlib import ExitStack

    from palio.records import to_json
    from palio.rollout.replay import check_record, replay_runs

    checked = check_record(run)
    replays = []
    if not checked.problems and not check:
        with ExitStack() as stack:
            driver_of = _drivers(stack)
            worlds = _worlds(catalogue, world)
            replays = list(replay_runs(run, driver_of, problems=problems, worlds=worlds))
    counts = {
        status: sum(each.status == status for each in replays)
        for status in ("identical", "departed", "skipped")
    }
    if as_json:
        record = json.loads(to_json(checked))
        rows = [json.loads(to_json(each)) for each in replays]
        typer.echo(json.dumps({"record": record, **counts, "replays": rows}))
    else:
        chain = checked.chain
        typer.echo(f"journal: {chain.entries:,} entries, {chain.size:,} bytes, head {chain.head}")
        for problem in checked.problems:
            typer.secho(problem, fg="red")
        for each in replays:
            if each.status != "identical":
                where = f"{each.agent} on {each.problem_id} ({each.trajectory_id})"
                typer.secho(f"{each.status}: {where}: {each.detail}", fg="yellow")
        if not checked.problems:
            runs = f"{checked.trajectories:,} trajectories are those that it tells of"
            typer.secho(f"its chain holds, {runs}", fg="green")
        if not check and not checked.problems:
            typer.echo(", ".join(f"{number:,} {status}" for status, number in counts.items()))
    if checked.problems or counts["departed"] or (replays and not counts["identical"]):
        raise typer.Exit(1)


def _drivers(stack: ExitStack) -> Callable[[str], Driver]:
    """Opens each driver once, by the brand that its runs carry."""
    from palio.rollout.replay import driver_name
    from palio.sandbox.choice import open_driver, opened

    held: dict[str, Driver] = {}

    def driver_of(isolation: str) -> Driver:
        if isolation not in held:
            held[isolation] = stack.enter_context(opened(open_driver(driver_name(isolation))))
        return held[isolation]

    return driver_of


def _worlds(catalogues: list[Path], world: str) -> dict[str, World]:
    from palio.world.catalogue import read_catalogues
    from palio.world.world import world_of_catalogue

    if not catalogues:
        return {}
    found, rejects = read_catalogues(catalogues)
    warn_of(rejects)
    return {held.digest: world_of_catalogue(held, world) for held in found.values()}


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
