"""palio corpus card, report, diff, daily, takedown: what a corpus is, and how it changes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli import corpus_options as options
from palio.cli.corpus_judging import judging, problems_of
from palio.cli.judge_choice import JUDGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from palio.corpus.card import About, Stats
    from palio.corpus.difference import Difference
    from palio.records import Message

ABOUT = typer.Option(None, help="TOML with title, licences, contact: keys of About.")
SHOWN = 20
"""Changes that a difference prints one by one."""


def register(app: typer.Typer) -> None:
    """Add the commands of this file to `palio corpus`."""
    for command in (card, report, diff, daily, takedown):
        app.command()(command)


def card(
    folder: Path = options.FOLDER,
    about: Path | None = ABOUT,
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json that counts tokens."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Write the data set card into a corpus: README.md, stats.json, report.html."""
    from palio.corpus.card import write_card

    said, stats = _measured(folder, about, tokenizer)
    written = write_card(folder, stats, said)
    if as_json:
        _print_json(stats)
        return
    for path in written:
        typer.echo(f"wrote {path}")


def report(
    folder: Path = options.FOLDER,
    out: Path = typer.Option(..., help="HTML file to write."),
    about: Path | None = ABOUT,
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json that counts tokens."),
) -> None:
    """Write the page with pictures alone, as one self-contained HTML file."""
    from palio.corpus.card import examples, render_page
    from palio.corpus.card.render import write_text

    said, stats = _measured(folder, about, tokenizer)
    typer.echo(f"wrote {write_text(out, render_page(stats, said, examples(folder)))}")


def diff(
    older: Path = typer.Argument(..., help="Corpus folder."),
    newer: Path = typer.Argument(..., help="Corpus folder to compare with it."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Show which rows came, went, moved or changed between two corpora, and why."""
    from palio.corpus.difference import difference

    found = difference(older, newer)
    if as_json:
        _print_json(found)
    else:
        _print_difference(found)


def daily(
    previous: Path = typer.Option(..., help="Corpus folder to grow from; it stays as it is."),
    trajectories: list[Path] = options.TRAJECTORIES,
    suite: list[Path] = typer.Option(..., help="All suites, those of earlier days included."),
    catalogue: list[Path] = options.CATALOGUE,
    out: Path = options.OUT,
    config: Path | None = typer.Option(None, help="Check that it is the corpus's configuration."),
    verdicts: list[Path] = options.VERDICTS,
    vectors: Path | None = options.VECTORS,
    encoder: str = options.ENCODER,
    judge: str = JUDGE,
    workers: int = options.WORKERS,
    as_json: bool = options.AS_JSON,
) -> None:
    """Grow a corpus by a day: only new trajectories are judged, pools never move."""
    from palio.cli.corpus_screen import counter, print_funnel, warn
    from palio.corpus.config import read_config
    from palio.corpus.daily import Day
    from palio.corpus.standing import standing
    from palio.suites.embedding import vector_store

    before = standing(previous, read_config(config) if config else None)
    with ExitStack() as stack, counter("judging and gating") as progress:
        asked = options.judge_of(stack, judge, out)
        read = judging(before.config, trajectories, suite, catalogue, verdicts, encoder, asked)
        day = Day(before, read.problems)
        day.check_judge(read.inputs)
        read.bench.recall(day.said())
        funnel = day.build(
            read.judged(day.to_judge(read.reader), workers),
            out,
            inputs=read.inputs,
            vectors=vector_store(before.config.guard.embedding, vectors),
            unread=read.reader.rejects,
            progress=progress,
        )
    print_funnel(funnel, as_json)
    warn(read.told(), funnel)
    known, revived = f"{day.skipped:,} were known", f"{day.revived:,} got their problem"
    typer.echo(f"{known}, {revived}, the rest is new; wrote {out}", err=as_json)


def takedown(
    folder: Path = typer.Argument(..., help="Corpus folder; it stays as it is."),
    out: Path = options.OUT,
    agent: list[str] = typer.Option([], help="Take down what this agent made."),
    trajectory: list[str] = typer.Option([], help="Take down this trajectory id."),
    problem: list[str] = typer.Option([], help="Take down all rows of this problem id."),
    source: list[str] = typer.Option([], help='Source as in provenance ("chat:day.jsonl").'),
    file: list[Path] = typer.Option([], help="Take down the trajectories of this file."),
    suite: list[Path] = typer.Option([], help="Suites, where the corpus hides some problems."),
    why: str = typer.Option("", help="Reason; published with the corpus."),
    day: str = typer.Option("", help="Date of the request, as it is to be published."),
    as_json: bool = options.AS_JSON,
) -> None:
    """Write the corpus that never had a source; the source stays out of later days."""
    from palio.corpus.reading import TraceReader
    from palio.corpus.standing import standing
    from palio.corpus.takedown import Notice, take_down

    before = standing(folder)
    named = [run.trajectory_id for path in file for run in TraceReader([path])]
    notice = Notice(
        agents=tuple(agent),
        trajectories=tuple(dict.fromkeys([*trajectory, *named])),
        problems=tuple(problem),
        sources=tuple(source),
        why=why,
        day=day,
    )
    problems = problems_of(suite) if suite else before.problems()
    funnel, done = take_down(before, notice, problems, out)
    if as_json:
        _print_json(done)
        return
    went = f"{done.rows:,} rows and {done.rejects:,} rejected rows went"
    typer.echo(f"{went}; {funnel.kept:,} rows are left; wrote {out}")


def _measured(folder: Path, about: Path | None, tokenizer: Path | None) -> tuple[About, Stats]:
    from palio.cli.corpus_screen import counter
    from palio.corpus.card import About, measure, read_about
    from palio.world.artefacts import file_digest

    said = read_about(about) if about else About()
    count, digest = (_token_count(tokenizer), file_digest(tokenizer)) if tokenizer else (None, "")
    with counter("measuring") as progress:
        stats = measure(folder, said, tokens=count, tokenizer=digest, progress=progress)
    return said, stats


def _token_count(path: Path) -> Callable[[Sequence[Message]], int]:
    """Exact tokens of the chat text that palio trains on."""
    from palio.records import InputError, MissingDependencyError
    from palio.train.text import segments

    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependencyError(
            "counting tokens needs tokenizers", remedy="pip install 'palio[train]'"
        ) from error
    if not path.is_file():
        raise InputError("no such tokenizer", where=str(path), remedy="name a tokenizer.json")
    try:
        held = Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises has no type of its own
        raise InputError(
            f"not a tokenizer: {error}", where=str(path), remedy="name a tokenizer.json"
        ) from error

    def count(messages: Sequence[Message]) -> int:
        text = "".join(segment.text for segment in segments(messages))
        return len(held.encode(text, add_special_tokens=False).ids)

    return count


def _print_json(record: Any) -> None:
    from palio.records import to_json

    typer.echo(to_json(record).decode())


def _print_difference(found: Difference) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    rows = f"{found.older.rows:,} rows -> {found.newer.rows:,} rows, {found.same:,} the same"
    console.print(escape(f"{found.older.name} -> {found.newer.name}: {rows}"))
    table = Table("", "rows", "by reason", "by source", "by agent")
    table.columns[1].justify = "right"
    for kind, tally in found.tallies.items():
        counted = (tally.reasons, tally.sources, tally.agents)
        table.add_row(kind, f"{tally.rows:,}", *(escape(_counts(counts)) for counts in counted))
    console.print(table)
    for key, (before, after) in found.config.items():
        console.print(escape(f"config {key}: {before} -> {after}"))
    for reason, (one, other) in found.rejected.items():
        console.print(escape(f"rejected {reason}: {one:,} -> {other:,}"))
    for what, names in found.problems.items():
        if names:
            console.print(escape(f"problems {what}: {len(names):,}"))
    for change in found.changes[:SHOWN]:
        head = f"{change.kind} {change.trajectory_id} ({change.pool}, {change.agent})"
        console.print(escape(f"{head}: {change.reason}"), style="dim")
    if len(found.changes) > SHOWN:
        console.print(f"{len(found.changes) - SHOWN:,} more; --json lists all", style="dim")


def _counts(counts: dict[str, int], most: int = 4) -> str:
    shown = [f"{name} {count:,}" for name, count in list(counts.items())[:most]]
    rest = sum(list(counts.values())[most:])
    return ", ".join([*shown, *([f"others {rest:,}"] if rest else [])])
