"""`palio demo`: the main job, from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def demo(
    out: Path = typer.Option(Path("runs/demo"), help="Run folder; an unfinished job goes on."),
    config: Path | None = typer.Option(None, help="TOML with settings that differ from the demo."),
    seed: int | None = typer.Option(None, help="Seed of worlds, split, training and sampling."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON in the end."),
) -> None:
    """Run the main job: race, record, judge, corpus, train, evaluate; about 13 minutes."""
    from palio.evaluate.mainjob.config import read_config
    from palio.evaluate.mainjob.job import run_main_job

    settings = read_config(config, seed)
    with _Screen() as screen:
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
    console.print(results_table(result.data.stages, result.data.floors))
    console.print(comparison_table(result.data.comparisons))
    minutes = result.summary.seconds / 60
    console.print(
        f"{minutes:.1f} minutes of work, {result.summary.peak_rss_mb:,.0f} MiB at most\n"
        f"report   {result.report_path}\nsummary  {result.summary_path}"
    )


class _Screen:
    """Draws one progress bar a stage on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> _Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, stage: str, total: int | None) -> None:
        """A new bar."""
        self._task = self._progress.add_task(stage, total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        """Move the current bar."""
        self._progress.update(self._task, completed=done, note=note)

    def end(self, stage: str, seconds: float, *, skipped: bool) -> None:
        """Replace the bar by a line that stays."""
        self._progress.remove_task(self._task)
        state = "was finished" if skipped else "done"
        self._progress.console.print(f"{stage:10} {state} in {seconds:.1f} s", highlight=False)
