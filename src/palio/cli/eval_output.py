"""How evaluations are shown: tables for people, JSON for programs, progress on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from palio.evaluate.comparison import Comparison
    from palio.evaluate.floors import FloorResult
    from palio.evaluate.report_data import StageResult
    from palio.evaluate.results import EvalResult
    from palio.evaluate.rollouts import Progress


def show(
    stages: Sequence[StageResult],
    floors: Sequence[FloorResult],
    comparisons: Sequence[tuple[Comparison, ...]],
    tools: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print policies with their floors, each policy by group, and paired comparisons.

    Args:
        stages: policies; floors that were learned are among them.
        floors: what reads nothing, and the ceiling.
        comparisons: each a family of paired comparisons.
        tools: of the harness.
        as_json: print one JSON document instead.
    """
    tell_faults(stages)
    if as_json:
        print_json(in_numbers(stages, floors, comparisons, tools))
        return
    from palio.evaluate.kept import models_in_words
    from palio.evaluate.tables import (
        behaviour_table,
        comparison_table,
        groups_table,
        results_table,
    )

    console = wide()
    learned = [stage for stage in stages if stage.floor]
    above = [stage for stage in stages if not stage.floor]
    title = f"Results, harness of {len(tools)} tools"
    console.print(results_table([*above, *learned], floors, title=title))
    for stage in above:
        console.print(groups_table(stage))
    console.print(behaviour_table([*above, *learned]))
    for rows in comparisons:
        console.print(comparison_table(rows))
    for line in models_in_words(stages):
        typer.echo(line)


def tell_faults(stages: Sequence[StageResult]) -> None:
    """Say on standard error what infrastructure broke, who is to blame, and the worst case.

    Rollouts that the wall clock stopped are told as well: they are failures, of whom nobody knows.
    """
    for stage in stages:
        for result in (stage.greedy, stage.sampled):
            for fault in result.faults if result else ():
                blame = f"{fault.blame} {fault.code} {fault.name}".strip() if fault.code else "?"
                told = f"{fault.example} ({fault.remedy})" if fault.remedy else fault.example
                text = f"{stage.name}: {fault.rollouts} rollouts unscored, {blame}: {told}; "
                text += "the same command tries them again"
                typer.secho(text, fg="yellow", err=True)
            if result and result.faults:
                typer.secho(f"{stage.name}: {_worst(result)}", fg="yellow", err=True)
            if result and (late := result.overall.timed_out):
                text = f"{stage.name}: {late} rollouts were stopped by the wall clock and count as "
                text += "failures; more time: --seconds, less in flight: --concurrency"
                typer.secho(text, fg="yellow", err=True)


def _worst(result: EvalResult) -> str:
    """A rate with what is unscored counted as failures."""
    from palio.evaluate.figure import percent

    whole = result.overall
    if whole.asr_worst is not None:
        return f"counted as failures, ASR is {percent(whole.asr_worst.rate)}"
    mean = whole.pass_at_1_worst
    return f"counted as failures, pass@1 is {percent(mean.value if mean else None)}"


def tell_gaps(results: Sequence[EvalResult]) -> None:
    """Say on standard error which problems of an evaluation are in no rate and in no pair."""
    for result in results:
        broken, unrun = result.overall.unscored_rollouts, result.unrun
        if broken or unrun:
            whole = result.overall.problems * result.samples
            text = f"{result.name}: of {whole} rollouts {broken} are unscored and {unrun} not made"
            text += "; they are in no rate, and those that are may be the easier ones"
            typer.secho(text, fg="yellow", err=True)


def in_numbers(
    stages: Sequence[StageResult],
    floors: Sequence[FloorResult],
    comparisons: Sequence[tuple[Comparison, ...]],
    tools: Sequence[str],
) -> dict[str, Any]:
    """The same as one JSON document."""
    import msgspec

    from palio.evaluate.summary import floor_summary, stage_summary

    below = [stage_summary(stage) for stage in stages if stage.floor]
    below += [floor_summary(floor) for floor in floors]
    return {
        "stages": [
            msgspec.to_builtins(stage_summary(stage)) for stage in stages if not stage.floor
        ],
        "floors": msgspec.to_builtins(below),
        "comparisons": msgspec.to_builtins([row for rows in comparisons for row in rows]),
        "tools": list(tools),
    }


def wide() -> Console:
    """A console in which no interval is cut off, where standard output is a pipe of 80 columns."""
    from rich.console import Console

    return Console(width=max(Console().width, 120))


def print_json(value: object) -> None:
    """Print plain data, indented."""
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def counted(title: str, total: int) -> Iterator[Callable[[Progress], None]]:
    """A bar of rollouts on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total)

        def moved(progress: Progress) -> None:
            bars.update(task, completed=total - progress.total + progress.done)

        yield moved
