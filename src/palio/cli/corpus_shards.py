"""palio corpus shard: raw traces of any size to gated columns, in parallel and resumably."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli import corpus_options as options
from palio.cli.corpus_formats import FORMAT
from palio.cli.judge_choice import JUDGE

if TYPE_CHECKING:
    from palio.corpus.shards import Plan, ShardManifest


def shard(
    sources: list[str] = typer.Argument(
        ..., help="Trace files, folders, patterns or URLs (s3://...); each file is a shard."
    ),
    out: str = typer.Option(..., help="Folder or URL for the shards."),
    config: Path | None = options.CONFIG,
    format: str = FORMAT,  # noqa: A002
    executor: str = typer.Option("processes", help="processes, inline or ray."),
    workers: int = typer.Option(2, min=1, help="Processes, or shards at a time on a cluster."),
    address: str = typer.Option("", help="Ray cluster to use; a local one is started without."),
    max_bytes: int = typer.Option(64 << 20, min=1, help="Longest record that is read."),
    level: int = typer.Option(3, min=1, max=19, help="zstd level of the columns."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Read and gate traces into Parquet; run it again after any interruption to do the rest.

    Only the gates that need nothing but a row itself apply here. `palio corpus build` takes the
    folder like any other traces, and does what compares rows.
    """
    from palio.corpus.shards import EXECUTORS, ShardConfig, plan, run
    from palio.records import ConfigError

    if executor not in EXECUTORS:
        raise ConfigError(f"no executor {executor!r}", remedy=f"one of {', '.join(EXECUTORS)}")
    corpus = options.config_of(config)
    chosen = ShardConfig(corpus=corpus, format=format, max_bytes=max_bytes, level=level)
    todo = plan(sources, chosen, out)
    with _counter(todo) as progress:
        made = run(todo, executor=executor, workers=workers, address=address, progress=progress)
    found = _summary(todo, list(made.values()))
    if as_json:
        typer.echo(json.dumps(found))
        return
    _show(found)
    for name in todo.strays:
        typer.echo(f"{name}: of none of these inputs, left as it is", err=True)


def _summary(todo: Plan, made: list[ShardManifest]) -> dict[str, Any]:
    from collections import Counter

    rejected: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    losses: Counter[str] = Counter()
    for manifest in made:
        rejected.update(manifest.rejected)
        formats.update(manifest.formats)
        losses.update(manifest.losses)
    return {
        "shards": len(made),
        "made": len(todo.left),
        "resumed": len(todo.done),
        "strays": list(todo.strays),
        "in": sum(manifest.taken for manifest in made),
        "kept": sum(manifest.kept for manifest in made),
        "rejected": dict(rejected.most_common()),
        "formats": dict(formats.most_common()),
        "losses": dict(losses.most_common()),
    }


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for title, key in (("rejected", "rejected"), ("format", "formats"), ("changed", "losses")):
        if not found[key]:
            continue
        table = Table(title, "rows")
        table.columns[1].justify = "right"
        for name, count in found[key].items():
            table.add_row(name, f"{count:,}")
        console.print(table)
    typer.echo(
        f"{found['shards']:,} shards ({found['resumed']:,} were there), {found['in']:,} rows in, "
        f"{found['kept']:,} kept, {found['in'] - found['kept']:,} rejected"
    )


@contextmanager
def _counter(todo: Plan) -> Iterator[Any]:
    """Shows the finished shards on standard error; gives the callback."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("shards"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        rows = sum(manifest.taken for manifest in todo.done.values())
        task = bar.add_task("", total=len(todo.names), completed=len(todo.done), rows=rows)

        def show(manifest: ShardManifest) -> None:
            nonlocal rows
            rows += manifest.taken
            bar.update(task, advance=1, rows=rows)

        yield show


def assemble(
    shards: str = typer.Argument(..., help="Folder or URL of `palio corpus shard`."),
    suite: list[Path] = typer.Option(..., help="Suites that the traces refer to."),
    out: Path = options.OUT,
    catalogue: list[Path] = options.CATALOGUE,
    config: Path | None = options.CONFIG,
    keep_pools: Path | None = options.KEEP_POOLS,
    links: Path | None = options.LINKS,
    vectors: Path | None = options.VECTORS,
    verdicts: list[Path] = options.VERDICTS,
    encoder: str = options.ENCODER,
    judge: str = JUDGE,
    workers: int = options.WORKERS,
    as_json: bool = options.AS_JSON,
) -> None:
    """Make the corpus of finished shards that `palio corpus build` makes of their traces.

    Rows are judged and scrubbed as there. With coefficient = 0, no catalogue and nothing to scrub
    nobody judges, and rows are compared by small columns alone.
    """
    from palio.cli.corpus_judging import bench_of
    from palio.cli.corpus_screen import counter, print_funnel, warn
    from palio.corpus.build import read_pools
    from palio.corpus.shards.assembly import assemble as assemble_shards
    from palio.rollout.verdicts import Verdicts
    from palio.suites.embedding import vector_store

    chosen = options.config_of(config, links)
    with ExitStack() as stack, counter("judging and gating") as progress:
        asked = options.judge_of(stack, judge, out)
        bench = bench_of(chosen, suite, catalogue, verdicts, encoder, asked)
        judges = chosen.coefficient > 0 or bool(catalogue or chosen.scrub) or asked is not None
        funnel = assemble_shards(
            shards,
            bench.problems,
            chosen,
            out,
            verdicts={name: Verdicts(outcomes=given) for name, given in bench.opinions.items()},
            judge=(lambda rows: bench.judged(rows, workers)) if judges else None,
            inputs=bench.inputs,
            previous=read_pools(keep_pools) if keep_pools else None,
            vectors=vector_store(chosen.guard.embedding, vectors),
            progress=progress,
        )
    print_funnel(funnel, as_json)
    warn((), funnel)
    if not as_json:
        typer.echo(f"wrote {out}")
