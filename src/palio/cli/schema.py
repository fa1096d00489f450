"""`palio schema`: the JSON Schema of palio's records."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from palio.records.schema import PUBLISHED, json_schema


def schema(
    name: str = typer.Argument("", help="A record's name; without one, the names are listed."),
    out: Path | None = typer.Option(None, help="Write every schema to this folder instead."),
    as_json: bool = typer.Option(False, "--json", help="List the names as JSON."),
) -> None:
    """Print the JSON Schema of a record, list the records, or write all schemas to a folder."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for each in PUBLISHED:
            text = json.dumps(json_schema(each), indent=2, sort_keys=True)
            (out / f"{each}.schema.json").write_text(text + "\n", encoding="utf-8")
        typer.echo(f"{len(PUBLISHED)} schemas in {out}")
    elif name:
        typer.echo(json.dumps(json_schema(name), indent=2, sort_keys=True))
    elif as_json:
        typer.echo(json.dumps(list(PUBLISHED)))
    else:
        for each, kind in PUBLISHED.items():
            typer.echo(f"{each:18} {(kind.__doc__ or '').splitlines()[0]}")
