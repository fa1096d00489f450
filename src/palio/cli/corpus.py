"""palio corpus: build a corpus from trajectories, show its funnel, look at its rows."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from palio.cli import corpus_card
from palio.cli import corpus_options as options
from palio.cli.corpus_formats import export, import_traces
from palio.cli.corpus_judging import judging
from palio.cli.corpus_leaks import register
from palio.cli.corpus_salvage import salvage
from palio.cli.corpus_screen import counter, print_funnel, warn
from palio.cli.corpus_shards import assemble, shard
from palio.cli.judge_choice import JUDGE

app = typer.Typer(
    help="Corpora: trajectories in, a judged, leak-guarded, split corpus out.",
    no_args_is_help=True,
)

app.command("import")(import_traces)
app.command()(export)
app.command()(salvage)
app.command()(shard)
app.command()(assemble)
register(app)
corpus_card.register(app)


@app.command()
def build(
    trajectories: list[Path] = options.TRAJECTORIES,
    suite: list[Path] = typer.Option(..., help="Suites that the trajectories refer to."),
    catalogue: list[Path] = options.CATALOGUE,
    out: Path = options.OUT,
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
    """Judge trajectories, gate them with counted reasons, split them without leaks."""
    from palio.corpus.build import build as build_corpus
    from palio.corpus.build import read_pools
    from palio.corpus.funnel_chart import draw_funnel
    from palio.suites.embedding import vector_store

    chosen = options.config_of(config, links)
    with ExitStack() as stack, counter("judging and gating") as progress:
        asked = options.judge_of(stack, judge, out)
        read = judging(chosen, trajectories, suite, catalogue, verdicts, encoder, asked)
        funnel = build_corpus(
            read.judged(read.reader, workers),
            read.problems,
            chosen,
            out,
            inputs=read.inputs,
            previous=read_pools(keep_pools) if keep_pools else None,
            vectors=vector_store(chosen.guard.embedding, vectors),
            unread=read.reader.rejects,
            progress=progress,
            refuse_strangers=True,
        )
    draw_funnel(funnel, out / "funnel.png", title=f"Corpus funnel: {out.name}")
    print_funnel(funnel, as_json)
    warn(read.told(), funnel)
    if not as_json:
        typer.echo(f"wrote {out}")


@app.command()
def funnel(
    folder: Path = options.FOLDER,
    chart: Path | None = typer.Option(None, help="Also draw it to this .png or .svg file."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Show how many rows each step kept, and why the others went."""
    from palio.corpus.funnel import read_funnel
    from palio.corpus.funnel_chart import draw_funnel

    found = read_funnel(folder)
    if chart:
        draw_funnel(found, chart, title=f"Corpus funnel: {folder.name}")
    print_funnel(found, as_json)


@app.command()
def show(
    folder: Path = options.FOLDER,
    pool: str = typer.Option("train", help="train, development or heldout."),
    row: int = typer.Option(0, min=0, help="Row to show, from 0."),
    trajectory: str = typer.Option("", help="Show this trajectory id instead."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Show one row as the model will read it, with its verdicts."""
    from itertools import islice

    from palio.corpus.lineage import read_lineage
    from palio.corpus.rows import read_rows
    from palio.records import InputError, to_json

    rows = read_rows(folder / f"{pool}.jsonl")
    if trajectory:
        found = next((held for held in rows if held.trajectory_id == trajectory), None)
    else:
        found = next(islice(rows, row, None), None)
    if found is None:
        raise InputError(
            f"{pool} has no {'trajectory ' + trajectory if trajectory else f'row {row}'}",
            where=str(folder),
            remedy="`palio corpus funnel` shows how many rows a pool has",
        )
    lineage = next(
        line for line in read_lineage(folder) if line.trajectory_id == found.trajectory_id
    )
    if as_json:
        typer.echo(
            json.dumps({"row": json.loads(to_json(found)), "lineage": json.loads(to_json(lineage))})
        )
        return
    head = (
        f"{found.kind} problem {found.problem_id} of {found.cluster_id}, agent {found.agent}, "
        f"richness {lineage.richness}, coefficient {lineage.coefficient}, rank {lineage.score:.3f}"
    )
    _print_conversation(head, found.messages)


def _print_conversation(head: str, messages: tuple[dict[str, Any], ...]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(escape(head), style="dim")
    colours = {"user": "cyan", "assistant": "green", "tool": "yellow", "system": "magenta"}
    for message in messages:
        console.print(f"[bold {colours[message['role']]}]{message['role']}[/]")
        if message.get("reasoning_content"):
            console.print(escape(message["reasoning_content"]), style="italic dim")
        if message.get("content"):
            console.print(escape(message["content"]))
        for call in message.get("tool_calls", ()):
            console.print(escape(f"→ {call['function']['name']} {call['function']['arguments']}"))
