"""palio world: import or generate a catalogue, look into it, search it, call its tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from palio.records import Reject
    from palio.world.catalogue import Catalogue
    from palio.world.lines import Progress
    from palio.world.world import World

app = typer.Typer(
    help="Catalogues: import, generate, look into, search, call tools.", no_args_is_help=True
)

documents = typer.Typer(help="Documents that web_search finds.", no_args_is_help=True)
app.add_typer(documents, name="documents")

AS_JSON = typer.Option(False, "--json", help="Print JSON.")
CATALOGUE = typer.Argument(..., help="Catalogue folder or product file.")
WORLD = typer.Option(
    "auto", "--world", help="How worlds show rows: full, compact, or auto: as catalogues say."
)


@app.command("import")
def import_products(
    source: Path = typer.Argument(..., help="documents.jsonl.gz, or product lines (gz, zst)."),
    out: Path = typer.Option(..., "--out", help="Folder to write the catalogue to."),
    name: str = typer.Option("", help="Name of the catalogue; by default the file's."),
    max_line_mb: float = typer.Option(4.0, min=0.001, help="Longer lines are rejected."),
    as_json: bool = AS_JSON,
) -> None:
    """Import a product file of any size; bad lines are counted and written to rejects.jsonl."""
    from palio.records import to_json
    from palio.world.streaming import import_catalogue

    limit = int(max_line_mb * 1024 * 1024)
    with _progress_bar(source.name) as progress:
        manifest = import_catalogue(
            source, out, catalogue_id=name, max_line_bytes=limit, progress=progress
        )
    if as_json:
        typer.echo(to_json(manifest).decode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("rows", "count", title=str(manifest.config["catalogue_id"]))
    for reason, count in manifest.counts.items():
        table.add_row(reason, f"{count:,}")
    Console().print(table)
    typer.echo(f"wrote {out}")


@app.command()
def generate(
    out: Path = typer.Option(..., "--out", help="Folder to write the world to."),
    config: str = typer.Option("compact", help="compact or full."),
    products: int = typer.Option(0, min=0, help="Size of the catalogue, by default the config's."),
    problems: int = typer.Option(0, min=0, help="Problems of all kinds together."),
    seed: int = typer.Option(0, help="Decides everything; equal seeds give equal files."),
    kind: str = typer.Option("shopping", help="shopping, or web: problems that need documents."),
    bank: list[str] = typer.Option(
        [], "--bank", help="Paraphrase bank of the requests, repeatable; else the usual ones."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Generate a catalogue with hard decoys and a suite of problems for it."""
    from palio.records import ConfigError

    if kind not in ("shopping", "web"):
        raise ConfigError(f"no kind of problems is called {kind!r}", remedy="shopping or web")
    if kind == "web":
        if bank:
            raise ConfigError("web problems have no paraphrase banks", remedy="leave --bank out")
        _generate_web(out, config, products, problems, seed, as_json)
        return
    from palio.suites import write_suite
    from palio.world.synthesis import preset, suite_of, synthesise, write_synthesis

    wanted = preset(config, seed, products=products, problems=problems, banks=tuple(bank))
    synthesis = synthesise(wanted)
    out.mkdir(parents=True, exist_ok=True)
    write_suite(suite_of(synthesis), out / "suite.json")
    write_synthesis(synthesis, out, also=("suite.json",))
    if as_json:
        typer.echo(json.dumps(synthesis.composition, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("composition", "value", "count", title=synthesis.config.name)
    for label, counts in synthesis.composition.items():
        for place, (value, count) in enumerate(counts.items()):
            table.add_row("" if place else label, value, f"{count:g}")
    Console().print(table)
    typer.echo(f"wrote {out}: {len(synthesis.catalogue):,} products and suite.json")


def _generate_web(
    out: Path, config: str, products: int, problems: int, seed: int, as_json: bool
) -> None:
    """Catalogue, documents and a suite of web problems."""
    import msgspec

    from palio.records import ConfigError, Suite
    from palio.suites import write_suite
    from palio.world.documents import DOCUMENTS, write_documents
    from palio.world.synthesis import WebConfig, synthesise_web, write_synthesis

    given = {"products": products, "problems": problems}
    asked = {"seed": seed, "world": config, **{name: n for name, n in given.items() if n}}
    try:
        wanted = msgspec.convert(asked, WebConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"no world is named {config!r}", remedy="compact or full") from error
    made = synthesise_web(wanted)
    out.mkdir(parents=True, exist_ok=True)
    suite = Suite(suite_id=made.config.name, version=made.config.generator, problems=made.problems)
    write_suite(suite, out / "suite.json")
    write_documents(made.documents, out, config=msgspec.to_builtins(made.config))
    write_synthesis(made.base, out, also=("suite.json", DOCUMENTS))
    told = {
        "products": len(made.catalogue),
        "documents": len(made.documents),
        "problems": len(made.problems),
    }
    typer.echo(json.dumps(told, indent=2) if as_json else f"wrote {out}: {told}")


@documents.command("import")
def import_web(
    source: Path = typer.Argument(..., help="Lines of {title, text, url} (plain, gz, zst)."),
    out: Path = typer.Option(..., "--out", help="Folder; a catalogue's: its world's documents."),
    as_json: bool = AS_JSON,
) -> None:
    """Import documents; bad lines are counted and written to documents.rejects.jsonl."""
    from palio.records import to_json
    from palio.world.documents import import_documents

    with _progress_bar(source.name) as progress:
        manifest = import_documents(source, out, progress=progress)
    if as_json:
        typer.echo(to_json(manifest).decode())
        return
    counts = ", ".join(f"{reason} {count:,}" for reason, count in manifest.counts.items())
    typer.echo(f"wrote {out}: {counts}")


@documents.command("search")
def search_web(
    path: Path = typer.Argument(..., help="Folder or file of documents."),
    query: str = typer.Argument(..., help="Words to look for."),
    max_results: int = typer.Option(5, min=1, max=10, help="Most documents to show."),
    as_json: bool = AS_JSON,
) -> None:
    """Search documents as an agent's web_search would."""
    import msgspec

    from palio.world.documents import read_documents
    from palio.world.web import DocumentIndex

    held, rejects = read_documents(path)
    warn_of(rejects)
    found = DocumentIndex(held).search(query, max_results)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    for result in found:
        typer.secho(f"{result.title}  {result.url}", bold=True)
        typer.echo(f"    {result.snippet}")


@app.command()
def info(path: Path = CATALOGUE, as_json: bool = AS_JSON) -> None:
    """Describe a catalogue: products, shops, prices, services, rejected rows, digest."""
    from palio.world.summary import summarise

    summary = summarise(*_read(path))
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "value", title=str(summary["catalogue_id"]))
    for label, value in summary.items():
        table.add_row(label, json.dumps(value, ensure_ascii=False))
    Console().print(table)


@app.command()
def search(
    path: Path = CATALOGUE,
    query: str = typer.Argument(..., help="Words to look for."),
    price: str = typer.Option("", help='Price range in PHP, "low-high"; a side may be empty.'),
    service: str = typer.Option("", help="Comma-separated service tags, all required."),
    shop_id: str = typer.Option("", "--shop", help="Only this shop."),
    sort: str = typer.Option("default", help="default, order, priceasc or pricedesc."),
    page: int = typer.Option(1, help="Page of results."),
    world: str = WORLD,
    as_json: bool = AS_JSON,
) -> None:
    """Search a catalogue as an agent would, filters and pages included."""
    from palio.world.tools import Toolbox

    asked = {"q": query, "price": price, "service": service, "shop_id": shop_id, "sort": sort}
    reply = Toolbox(_world(path, world)).call("find_product", {**asked, "page": page})
    for warning in reply.warnings:
        typer.secho(f"warning: {warning}", fg="yellow", err=True)
    if as_json:
        typer.echo(reply.result)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("product", "shop", "price", "title")
    for row in json.loads(reply.result):
        table.add_row(row["product_id"], row["shop_id"], f"{row['price']:,.2f}", row["title"])
    Console().print(table)


@app.command()
def tools(
    names: list[str] = typer.Argument(None, help="Tool names; by default all seven."),
    as_json: bool = AS_JSON,
) -> None:
    """List the tools as a model is told about them."""
    from palio.world.tools import SEVEN_TOOLS, tool_schemas

    schemas = tool_schemas(tuple(names) if names else SEVEN_TOOLS)
    if as_json:
        typer.echo(json.dumps(schemas, indent=2))
        return
    for schema in schemas:
        function = schema["function"]
        arguments = ", ".join(function["parameters"]["properties"])
        typer.secho(f"{function['name']}({arguments})", bold=True)
        typer.echo(f"    {function['description']}")


@app.command()
def call(
    path: Path = CATALOGUE,
    tool: str = typer.Argument(..., help="Name of the tool."),
    arguments: str = typer.Argument("{}", help="Arguments as a JSON object."),
    world: str = WORLD,
) -> None:
    """Call one tool and print what an agent would read."""
    from palio.world.tools import Toolbox, tool_message

    reply = Toolbox(_world(path, world)).call(tool, arguments)
    typer.echo(tool_message(reply))
    if reply.error:
        raise typer.Exit(1)


def _read(path: Path) -> tuple[Catalogue, tuple[Reject, ...]]:
    from palio.world.catalogue import read_catalogue

    with _progress_bar(path.name) as progress:
        return read_catalogue(path, progress=progress)


def _world(path: Path, name: str) -> World:
    """The world of a catalogue; rejected rows are counted on stderr."""
    from palio.world.world import world_of_catalogue

    catalogue, rejects = _read(path)
    warn_of(rejects)
    return world_of_catalogue(catalogue, name)


def warn_of(rejects: tuple[Reject, ...]) -> None:
    """Say on stderr how many rows of catalogues were rejected, and why the first one was."""
    if rejects:
        first = rejects[0]
        text = f"{len(rejects)} rows rejected, the first at {first.file}:{first.line}"
        typer.secho(f"warning: {text}: {first.detail}", fg="yellow", err=True)


def tell_unread(rejects: Sequence[Reject]) -> int:
    """Say on stderr which rows of task files are no problems, and why; returns how many."""
    for row in rejects:
        typer.secho(f"{row.file}:{row.line}: {row.detail}", fg="yellow", err=True)
    if rejects:
        text = f"{len(rejects)} rows of task files are no problems and were left out"
        typer.secho(text, fg="yellow", err=True)
    return len(rejects)


@contextmanager
def _progress_bar(label: str) -> Iterator[Progress]:
    """A bar on stderr, by bytes of the source; it shows nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    quiet = not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=quiet
    ) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, lines: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{label} {lines:,} lines")

        yield show
