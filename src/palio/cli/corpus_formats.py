"""palio corpus import and export: traces of any format in, data sets of any format out."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from palio.corpus.readers.importing import TraceImport

UNREAD = ("unreadable_file", "compression", "parquet")
"""Reasons by which a whole file, or the rest of one, is lost."""
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
FORMAT = typer.Option("auto", help="Format of every record: auto, or one that docs/formats.md has.")


def import_traces(
    sources: list[str] = typer.Argument(
        ..., help="Files, folders, glob patterns, or - for standard input; plain, .gz or .zst."
    ),
    out: Path = typer.Option(..., help="Trajectories to write: .jsonl, .jsonl.gz or .jsonl.zst."),
    format: str = FORMAT,  # noqa: A002
    max_bytes: int = typer.Option(64 << 20, min=1, help="Longest record that is read."),
    as_json: bool = AS_JSON,
) -> None:
    """Read traces of any format; count what was changed, and keep what could not be read aside."""
    from palio.corpus.readers.importing import TraceImport
    from palio.corpus.readers.writing import write_import

    with _counter("importing") as progress:
        reader = TraceImport(
            sources,
            format=format,
            max_bytes=max_bytes,
            stdin=sys.stdin.buffer if "-" in sources else None,
            progress=lambda file, records: progress(records, f"file {file + 1}"),
        )
        files = write_import(reader, out)
    found = _summary(reader) | {"files": {name: str(path) for name, path in files.items()}}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show_import(reader, files)
    _fail_when_unread(reader)


def _show_import(reader: TraceImport, files: Mapping[str, Path]) -> None:
    _print_counts("format", "trajectories", reader.formats)
    _print_counts("changed in reading", "times", reader.losses)
    _print_counts("rejected", "records", Counter(reject.reason for reject in reader.rejects))
    for reject in reader.rejects[:5]:
        typer.echo(f"{reject.file}:{reject.line}: {reject.reason}: {reject.detail}", err=True)
    for name in reader.skipped[:5]:
        typer.echo(f"{name}: passed over", err=True)
    if len(reader.skipped) > 5:
        typer.echo(f"and {len(reader.skipped) - 5:,} more; --json has all", err=True)
    typer.echo(
        f"{reader.records:,} records, {sum(reader.formats.values()):,} trajectories, "
        f"{len(reader.rejects):,} rejected; wrote {', '.join(str(path) for path in files.values())}"
    )


def _fail_when_unread(reader: TraceImport) -> None:
    """Exit 1 when a file could not be read to its end, or when nothing at all was a trace."""
    cut = sorted({r.file for r in reader.rejects if r.reason in UNREAD})
    if cut:
        why = f"{len(cut)} files were not read to their end, {cut[0]} first of them"
    elif reader.records and not reader.formats:
        why = f"none of the {reader.records:,} records is a trace"
    else:
        return
    typer.secho(f"{why}; what was read is written, the rest is in the rejects", fg="red", err=True)
    raise typer.Exit(1)


def export(
    folder: Path = typer.Argument(..., help="A corpus folder, or traces of any format."),
    to: str = typer.Option(
        ..., "--to", "--format", help="hf, hf-flat, kto, grpo, atif, verl or verifiers."
    ),
    out: Path = typer.Option(..., help="Folder to write."),
    arguments: str = typer.Option("string", help="Arguments of calls: string or object."),
    profile: str = typer.Option("oro", help="Outcome profile of KTO's labels and of rewards."),
    suite: Path | None = typer.Option(None, help="The corpus' suite; verl and verifiers need it."),
    catalogue: list[Path] = typer.Option([], help="Its catalogues; verl and verifiers need them."),
    encoder: str = typer.Option("lexical", help="Title similarity of rewards: lexical or minilm."),
    as_json: bool = AS_JSON,
) -> None:
    """Write a corpus in another format, with the exact list of what that format cannot hold."""
    import msgspec

    from palio.corpus.writers.export import TARGETS, ExportConfig
    from palio.corpus.writers.export import export as export_corpus
    from palio.records import PROFILES, ConfigError, to_json

    if to in ("verl", "verifiers"):
        _export_shop(to, folder, suite, catalogue, encoder, profile, out, as_json)
        return
    try:
        config = msgspec.convert(
            {"to": to, "arguments": arguments, "profile": profile}, ExportConfig
        )
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"no such export: {error}",
            remedy=f"--to is one of {', '.join(TARGETS)}, verl, verifiers; --arguments string or "
            f"object; --profile one of {', '.join(PROFILES)}",
        ) from error
    with _counter("exporting") as progress:
        report = export_corpus(folder, config, out, progress=lambda done: progress(done, ""))
    if as_json:
        typer.echo(to_json(report).decode())
        return
    _print_counts("split", "rows", report.rows)
    _print_counts("no row because", "trajectories", report.skipped)
    _print_counts("not carried over", "trajectories", report.losses)
    typer.echo(f"wrote {out}")


def _export_shop(
    to: str,
    folder: Path,
    suite: Path | None,
    catalogues: list[Path],
    encoder: str,
    profile: str,
    out: Path,
    as_json: bool,
) -> None:
    """Problems, tools and scorer for another trainer."""
    import msgspec

    from palio.records import ConfigError, to_json
    from palio.train.environments.exporting import export_shop
    from palio.train.environments.shop import ShopSettings

    if suite is None or not catalogues:
        raise ConfigError(f"{to} needs --suite and --catalogue: its rewards look at both")
    plain = {"catalogues": [str(path) for path in catalogues]}
    try:
        settings = msgspec.convert({**plain, "encoder": encoder, "profile": profile}, ShopSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), remedy="--profile is upstream, oro or strict") from error
    report = export_shop("verl" if to == "verl" else "verifiers", folder, suite, settings, out)
    if as_json:
        typer.echo(to_json(report).decode())
        return
    _print_counts("pool", "problems", report.problems)
    _print_counts("pool", "conversations", report.rows)
    typer.echo(f"wrote {out}")


def _summary(reader: TraceImport) -> dict[str, Any]:
    return {
        "records": reader.records,
        "trajectories": sum(reader.formats.values()),
        "formats": dict(sorted(reader.formats.items())),
        "losses": dict(sorted(reader.losses.items())),
        "rejects": dict(sorted(Counter(reject.reason for reject in reader.rejects).items())),
        "skipped_files": list(reader.skipped),
    }


def _print_counts(name: str, unit: str, counts: Mapping[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    if not counts:
        return
    table = Table(name, unit)
    table.columns[1].justify = "right"
    for key, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        table.add_row(key, f"{count:,}")
    Console().print(table)


@contextmanager
def _counter(label: str) -> Iterator[Any]:
    """Shows a growing count on standard error; gives the function that sets it."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn(f"{label} {{task.description}}: {{task.completed:,}}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, where: str) -> None:
            if done % 100 == 0:
                bar.update(task, completed=done, description=where)

        yield show
