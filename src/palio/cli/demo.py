"""`palio demo`: the main job, from nothing to a report."""

from __future__ import annotations

from pathlib import Path

import typer

from palio.cli.screen import Screen


def demo(
    out: Path = typer.Option(Path("runs/demo"), help="Run folder; an unfinished job goes on."),
    config: Path | None = typer.Option(
        None,
        help="TOML with settings that differ; `chain`: all stages of the recipe tiny.",
    ),
    seed: int | None = typer.Option(None, help="Seed of worlds, split, training and sampling."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON in the end."),
) -> None:
    """Run the main job: race, record, judge, corpus, train, evaluate; about 13 minutes."""
    from palio.evaluate.mainjob.config import read_config
    from palio.evaluate.mainjob.job import run_main_job

    settings = read_config(config, seed)
    with Screen() as screen:
        result = run_main_job(settings, out, screen)
    if as_json:
        typer.echo(result.summary_path.read_text(encoding="utf-8"))
        return
    from rich.console import Console

    from palio.evaluate.tables import comparison_table, results_table

    # the tables need 116 columns; a pipe has no width of its own
    console = Console(width=max(Console().width, 120))
    for table in result.data.world:
        shown = ", ".join(f"{fact.label} {fact.value}" for fact in table.facts)
        console.print(f"[bold]{table.title}:[/bold] {shown}", highlight=False)
    for fact in result.data.race:
        if fact.label == "isolation":
            console.print(f"[bold]isolation of the race:[/bold] {fact.value}", highlight=False)
    console.print(results_table(result.data.stages, result.data.floors))
    if result.data.reworded:
        title = "Asked in words that no training problem has, in another catalogue"
        rows = (result.data.reworded,), result.data.reworded_floors
        console.print(results_table(*rows, title=title))
    console.print(comparison_table(result.data.comparisons))
    minutes = result.summary.seconds / 60
    console.print(
        f"{minutes:.1f} minutes of work, {result.summary.peak_rss_mb:,.0f} MiB at most\n"
        f"report   {result.report_path}\nsummary  {result.summary_path}"
    )
