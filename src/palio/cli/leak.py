"""palio leak: which problems are one problem in disguise, and do two suites share any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.world import tell_unread

if TYPE_CHECKING:
    from palio.records import Problem
    from palio.suites import Clustering
    from palio.suites.guard import Guarded

app = typer.Typer(
    help="Leak guard: clusters of problems that share something, and checks of pools.",
    no_args_is_help=True,
)

AS_JSON = typer.Option(False, "--json", help="Print JSON.")
EDGES = typer.Option(
    "product,spec,text",
    "--edges",
    help="What joins two problems: product (shared target), spec (same reward specification "
    "without the voucher), text (same normalised query); comma separated.",
)


@app.command()
def clusters(
    files: list[Path] = typer.Argument(..., help="Suites, public task files or arena suites."),
    edges: str = EDGES,
    similar: bool = typer.Option(
        False, "--similar", help="Also join similar requests, and list suspicions and alarms."
    ),
    links: Path | None = typer.Option(None, help="TOML with must and cannot: pairs of problems."),
    as_json: bool = AS_JSON,
) -> None:
    """Cluster the problems of one or more files; problems of two files may join."""
    from palio.suites.clusters import edge_kinds
    from palio.suites.guard import GuardConfig, guard
    from palio.suites.links import Links, read_links

    problems, rejected = _read(files, prefix=len(files) > 1)
    config = GuardConfig(links=read_links(links) if links else Links())
    if not similar:
        config = GuardConfig(lexical=None, grams=None, links=config.links)
    found = guard(problems, config, edge_kinds(edges.split(",")))
    clustering = found.clustering
    summary = _summary(clustering, rejected) | _warnings(found)
    if as_json:
        typer.echo(json.dumps(summary | {"cluster_of": clustering.cluster_of}, indent=2))
        return
    _show(summary)


@app.command()
def check(
    files: list[Path] = typer.Argument(..., help="Two or more suites; each is one pool."),
    as_json: bool = AS_JSON,
) -> None:
    """Fail with the rule and the pair when two files share a problem in any disguise."""
    from palio.records import InputError, to_json
    from palio.suites.pools import check_disjoint

    if len(files) < 2:
        raise InputError("one pool cannot leak", remedy="name two or more files")
    pools = {str(path): _read([path], prefix=True)[0] for path in files}
    report = check_disjoint(pools)
    if as_json:
        typer.echo(to_json(report).decode())
        return
    compared = ", ".join(f"{count} {rule}" for rule, count in report.keys.items())
    typer.echo(f"{len(files)} pools share nothing; compared {compared} keys")


def _read(files: list[Path], *, prefix: bool) -> tuple[list[Problem], int]:
    """All problems, and how many rows were none; with `prefix`, ids carry the file's name.

    Row ids of task files start anew in each file, so that equal ids there mean nothing.
    """
    import msgspec

    from palio.suites.files import read_any_suite

    problems: list[Problem] = []
    rejected = 0
    for path in files:
        suite, rejects = read_any_suite(path)
        rejected += len(rejects)
        tell_unread(rejects)
        for problem in suite.problems:
            name = f"{path.stem}/{problem.problem_id}" if prefix else problem.problem_id
            problems.append(msgspec.structs.replace(problem, problem_id=name))
    return problems, rejected


def _summary(clustering: Clustering, rejected: int) -> dict[str, Any]:
    joined = {name: ids for name, ids in clustering.members.items() if len(ids) > 1}
    found: dict[str, list[dict[str, str]]] = {name: [] for name in joined}
    for kind, edges in clustering.edges.items():
        for edge in edges:
            pair = {"rule": kind, "one": edge.one, "other": edge.other, "key": edge.key}
            found[clustering.cluster_of[edge.one]].append(pair)
    return {
        "problems": len(clustering.cluster_of),
        "clusters": len(clustering.members),
        "rejected_rows": rejected,
        "largest": clustering.largest,
        "edges": {kind: len(edges) for kind, edges in clustering.edges.items()},
        "joined": [
            {"cluster": name, "problems": list(ids), "edges": found[name]}
            for name, ids in sorted(joined.items(), key=lambda item: (-len(item[1]), item[0]))
        ],
    }


def _warnings(found: Guarded) -> dict[str, Any]:
    import msgspec

    return {
        "suspicions": [msgspec.to_builtins(each) for each in found.suspicions],
        "alarms": [msgspec.to_builtins(each) for each in found.alarms],
    }


def _show(summary: dict[str, Any], shown: int = 20) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    counts = ", ".join(f"{count} {kind}" for kind, count in summary["edges"].items())
    typer.echo(
        f"{summary['problems']} problems in {summary['clusters']} clusters; "
        f"the largest holds {summary['largest']}; edges: {counts}"
    )
    for alarm in summary["alarms"]:
        what = f"{alarm['size']} problems, density {alarm['density']:.2f}"
        typer.secho(f"alarm: cluster {alarm['cluster']} is {alarm['why']}: {what}", fg="red")
    for each in summary["suspicions"][:shown]:
        typer.secho(f"suspicion: {' and '.join(each['problems'][:4])}: {each['key']}", fg="yellow")
    if not summary["joined"]:
        return
    table = Table("cluster", "problems", "joined by")
    table.columns[1].overflow = "fold"
    for row in summary["joined"][:shown]:
        why = "\n".join(f"{edge['rule']} {edge['key'][:50]}" for edge in row["edges"][:3])
        table.add_row(row["cluster"], "\n".join(row["problems"][:6]), escape(why))
    Console().print(table)
    if len(summary["joined"]) > shown:
        typer.echo(f"... and {len(summary['joined']) - shown} more; --json prints all")
