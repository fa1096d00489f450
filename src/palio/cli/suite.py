"""palio suite: import public task files and arena suites, list suites, look into one."""

from __future__ import annotations

import json
from pathlib import Path

import typer

app = typer.Typer(help="Problem suites: import, list, look into.", no_args_is_help=True)

AS_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command("import")
def import_tasks(
    sources: list[Path] = typer.Argument(..., help="Task files (JSON lines) or arena suites."),
    out: Path = typer.Option(..., "--out", help="Suite file to write."),
    name: str = typer.Option("", help="Name of the suite; by default the output file's."),
    as_json: bool = AS_JSON,
) -> None:
    """Read task files into one suite; bad rows are counted and written beside it."""
    from palio.records import InputError, to_json
    from palio.suites.files import write_suite
    from palio.world.artefacts import write_lines
    from palio.world.importing import import_suite
    from palio.world.summary import summarise_suite

    suite, rejects = import_suite(*sources, suite_id=name or out.stem)
    kept_apart = out.with_name(out.name + ".rejects.jsonl")
    write_lines(kept_apart, (to_json(reject) + b"\n" for reject in rejects))
    if not suite.problems:
        raise InputError(
            "no problem in it", where=str(sources[0]), remedy=f"see {kept_apart} for the reasons"
        )
    write_suite(suite, out)
    reasons: dict[str, int] = {}
    for reject in rejects:
        reasons[reject.reason] = reasons.get(reject.reason, 0) + 1
    summary = {**summarise_suite(suite), "rejected": reasons}
    _show(summary, as_json)
    if not as_json:
        typer.echo(f"wrote {out}")


@app.command("list")
def list_suites(
    folder: Path = typer.Argument(Path(), help="Folder to look for suite files in."),
    as_json: bool = AS_JSON,
) -> None:
    """List the suite files under a folder; files that are no suites are passed over."""
    from palio.records import InputError, PalioError
    from palio.suites.files import read_suite
    from palio.world.summary import summarise_suite

    if not folder.is_dir():
        raise InputError("no such folder", where=str(folder), remedy="check the path")
    found = []
    for path in sorted(folder.rglob("*.json")):
        with path.open("rb") as stream:
            if b'"suite_id"' not in stream.read(256):
                continue
        try:
            found.append({"file": str(path), **summarise_suite(read_suite(path))})
        except PalioError as error:
            typer.secho(f"passed over: {error}", fg="yellow", err=True)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("file", "suite", "version", "problems", "kinds")
    for row in found:
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["kinds"].items())
        table.add_row(row["file"], row["suite_id"], row["version"], str(row["problems"]), kinds)
    Console().print(table)


@app.command()
def info(
    path: Path = typer.Argument(..., help="Suite file."),
    as_json: bool = AS_JSON,
) -> None:
    """Describe a suite: kinds, items, difficulty, sources, digest."""
    from palio.suites.files import read_suite
    from palio.world.summary import summarise_suite

    _show(summarise_suite(read_suite(path)), as_json)


def _show(summary: dict[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "value", title=str(summary["suite_id"]))
    for label, value in summary.items():
        table.add_row(label, json.dumps(value, ensure_ascii=False))
    Console().print(table)
