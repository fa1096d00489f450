"""palio train: run a training recipe over a corpus."""

from __future__ import annotations

import json
from pathlib import Path

import typer

app = typer.Typer(help="Training: a recipe and a corpus become checkpoints.", no_args_is_help=True)


@app.command()
def run(
    recipe: str = typer.Argument(help="A bundled recipe (tiny), or a TOML file."),
    corpus: Path = typer.Option(help="Corpus folder of `palio corpus build`."),
    out: Path = typer.Option(help="Run folder; a run that was stopped goes on."),
    threads: int = typer.Option(2, min=1, help="Worker threads; no influence on the result."),
    minutes: float = typer.Option(0.0, min=0.0, help="Time limit of all stages; 0: the recipe's."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Train all stages of a recipe."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from palio.train.loop import Point
    from palio.train.recipe import load_recipe, shortened
    from palio.train.run import train

    chosen = load_recipe(recipe)
    if minutes:
        chosen = shortened(chosen, minutes)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("reading the corpus", total=1.0)

        def show(share: float, point: Point) -> None:
            text = f"{point.stage}: loss {point.loss:.3f}, {point.tokens_per_s:,.0f} tokens/s"
            bar.update(task, completed=share, description=text)

        made = train(chosen, corpus, out, report=show, threads=threads)
    if as_json:
        plain = {**made._asdict(), "base": str(made.base), "final": str(made.final)}
        typer.echo(json.dumps(plain, indent=2))
        return
    typer.echo(f"trained on {made.trajectories:,} trajectories ({made.dropped:,} too long)")
    typer.echo(f"base:  {made.base}\nfinal: {made.final}")
    if made.shortened:
        typer.echo("a time limit cut the schedule short: the result depends on this machine")


@app.command()
def curve(
    run_folder: Path = typer.Argument(help="Run folder of `palio train run`."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show the learning curve of a run."""
    from rich.console import Console
    from rich.table import Table

    from palio.records import InputError
    from palio.train.run import read_curve

    points = read_curve(run_folder)
    if not points:
        raise InputError("no learning curve yet", where=str(run_folder))
    if as_json:
        rows = [{f: getattr(p, f) for f in p.__struct_fields__} for p in points]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("stage", "step", "tokens", "loss", "rate", "tokens/s", "seconds")
    for p in points:
        numbers = (p.step, f"{p.tokens:,}", f"{p.loss:.4f}", f"{p.rate:.3f}")
        table.add_row(
            p.stage, *(str(n) for n in numbers), f"{p.tokens_per_s:,.0f}", f"{p.seconds:.0f}"
        )
    Console().print(table)
