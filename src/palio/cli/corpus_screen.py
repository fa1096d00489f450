"""What the corpus commands show: a growing count, and a funnel as tables or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from palio.corpus.funnel import Funnel


def counter(label: str) -> Any:
    """A context that shows a growing count on standard error and gives the callback."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    @contextmanager
    def counting() -> Any:
        columns = (
            SpinnerColumn(),
            TextColumn(f"{label}: {{task.completed:,}} trajectories"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done: bar.update(task, completed=done) if done % 100 == 0 else None

    return counting()


def warn(told: Iterable[str], funnel: Funnel) -> None:
    """Say on standard error what was read, and what looks like a mistake in the inputs."""
    for sentence in told:
        typer.echo(sentence, err=True)
    known = next((step for step in funnel.steps if step.name == "known"), None)
    strangers = known.rejected.get("unknown_problem", 0) if known else 0
    if known and strangers:
        typer.secho(
            f"{strangers:,} of {known.taken:,} trajectories are of problems that no suite has: "
            "name all suites that they were made with",
            fg="red" if 2 * strangers >= known.taken else "yellow",
            err=True,
        )


def print_funnel(found: Funnel, as_json: bool) -> None:
    """Show what each step took and kept, and why the others went."""
    from palio.records import to_json

    if as_json:
        typer.echo(to_json(found).decode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("step", "in", "kept", "rejected")
    for column in table.columns[1:3]:
        column.justify = "right"
    for step in found.steps:
        why = ", ".join(f"{reason} {count:,}" for reason, count in step.rejected.items())
        table.add_row(step.name, f"{step.taken:,}", f"{step.kept:,}", why)
    console = Console()
    console.print(table)
    pools = Table("pool", "rows", "problems", "clusters", "queries")
    for pool, count in found.pools.items():
        numbers = (count.rows, count.problems, count.clusters, count.queries)
        pools.add_row(pool, *(f"{number:,}" for number in numbers))
    console.print(pools)
