"""palio corpus verify and decontaminate: prove that nothing leaks, and take out what does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.corpus_options import AS_JSON, FOLDER
from palio.cli.world import tell_unread

if TYPE_CHECKING:
    from palio.corpus.decontaminate import Contamination
    from palio.corpus.verify import Verification


def verify(
    folder: Path = FOLDER,
    previous: Path | None = typer.Option(None, help="The corpus that pools were kept from."),
    shown: int = typer.Option(20, min=1, help="Print at most so many findings."),
    accept_unchecked: bool = typer.Option(
        False, "--accept-unchecked", help="End well although something could not be checked."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Recompute every promise of a corpus from its files; fail and name each leak.

    Ends with 1 when anything was found, with 3 when nothing was and something that a certificate
    of today allows to check could not be.
    """
    import msgspec

    from palio.corpus.verify import verify as verify_folder
    from palio.records import InputError

    for each in (folder, previous or folder):
        if not each.is_dir():
            raise InputError("no such folder", where=str(each), remedy="name a corpus folder")
    found = verify_folder(folder, previous)
    if as_json:
        said = {"good": found.good, "whole": found.whole}
        typer.echo(json.dumps(msgspec.to_builtins(found) | said, indent=2))
    else:
        _show(found, folder, shown)
    if not found.good:
        raise typer.Exit(1)
    if not found.whole and not accept_unchecked:
        raise typer.Exit(UNCHECKED)


UNCHECKED = 3
"""Exit status where nothing was found and not everything could be looked at."""


def decontaminate(
    folder: Path = FOLDER,
    against: list[Path] = typer.Option([], help="Task files of external benchmarks."),
    out: Path | None = typer.Option(None, help="Write the corpus without what was found here."),
    as_json: bool = AS_JSON,
) -> None:
    """Find rows that external benchmarks hold; fail when there are any and none is taken out.

    Exact keys are checked against the registry that ships; fuzzy ones need the task files. Ends
    with 1 when rows were found and stay, with 3 when rows of a task file are no problems.
    """
    import msgspec

    from palio.corpus.decontaminate import cleaned, contamination
    from palio.suites.files import read_any_suite

    names = [path.name for path in against]
    twice = {name for name in names if names.count(name) > 1}
    read = {str(p) if p.name in twice else p.name: read_any_suite(p) for p in against}
    benchmarks = {name: suite.problems for name, (suite, _) in read.items()}
    unread = tell_unread([row for _, rejects in read.values() for row in rejects])
    found = contamination(folder, benchmarks)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        _show_contamination(found)
    if out is not None:
        funnel = cleaned(folder, found, out)
        typer.secho(f"wrote {out}: {funnel.kept:,} rows", err=as_json)
    elif found.rows_hit:
        raise typer.Exit(1)
    if unread:
        raise typer.Exit(UNCHECKED)


def register(app: typer.Typer) -> None:
    """Add both commands to `palio corpus`."""
    app.command()(verify)
    app.command()(decontaminate)


def _show(found: Verification, folder: Path, shown: int) -> None:
    for note in found.notes:
        typer.secho(f"note: {note}", fg="yellow")
    for finding in found.findings[:shown]:
        typer.secho(f"{finding.rule}: {finding.what}", fg="red")
        for place in finding.rows:
            typer.echo(f"    {place}")
    if len(found.findings) > shown:
        typer.echo(f"... and {len(found.findings) - shown} more; --json prints all")
    for gap in found.unchecked:
        typer.secho(f"NOT CHECKED: {gap}", fg="yellow")
    looked = ", ".join(f"{count:,} {rule}" for rule, count in found.checked.items())
    if found.whole:
        typer.secho(f"{folder} is as certified and leaks nothing", fg="green")
    elif found.good:
        typer.secho(f"{folder}: nothing was found in what could be checked", fg="yellow")
    else:
        typer.secho(f"{folder}: {len(found.findings)} findings", fg="red")
    typer.echo(f"looked at {looked}")


def _show_contamination(found: Contamination) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("benchmark", "rule", "pool", "problems", "rows", "example")
    for each in found.summary():
        table.add_row(
            each.benchmark,
            each.rule,
            each.pool,
            f"{each.problems:,}",
            f"{each.rows:,}",
            each.example,
        )
    if found.hits:
        Console().print(table)
    typer.echo(
        f"{len({hit.problem_id for hit in found.hits}):,} of {found.problems:,} problems and "
        f"{found.rows_hit:,} of {found.rows:,} rows are in a benchmark"
    )
