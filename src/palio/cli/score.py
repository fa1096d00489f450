"""palio score: outcome verdicts on stored runs, and the golden vectors of the original scorers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.run_folder import RUN_FOLDER, stored, summarise
from palio.cli.world import warn_of

if TYPE_CHECKING:
    from palio.judging.vectors import VectorReport

app = typer.Typer(help="Outcome scores by rule.", no_args_is_help=True)

DATA_FOLDERS = (Path("shared/data"), Path("../shared/data"))
TASKS = "tasks_shoppingbench_*.jsonl"
CATALOGUE = "products_real.jsonl"
SHOWN = 10


@app.command()
def vectors(
    file: Path = typer.Argument(..., help="Vectors such as scorer_vectors.jsonl."),
    tasks: Path | None = typer.Option(
        None, help="Folder of the task files; by default FILE's, shared/data or ../shared/data."
    ),
    catalogue: Path | None = typer.Option(
        None, help="Product file or folder; by default products_real.jsonl of those folders."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare our scorer with what the original scorers answered; exit 1 unless all rows agree."""
    from palio.judging.vectors import run_vectors
    from palio.records import InputError
    from palio.world import read_catalogue
    from palio.world.importing import import_suite

    if not file.is_file():
        raise InputError("no such file", where=str(file), remedy="check the path")
    folders = [file.parent, *DATA_FOLDERS]
    named = sorted(_first(TASKS, [tasks] if tasks else folders).glob(TASKS))
    suite, rejects = import_suite(*named)
    if rejects:
        first = rejects[0]
        raise InputError(f"bad task row: {first.detail}", where=f"{first.file}:{first.line}")
    path = catalogue or _first(CATALOGUE, folders) / CATALOGUE
    products, bad = read_catalogue(path)
    if bad:
        raise InputError(f"bad product row: {bad[0].detail}", where=f"{bad[0].file}:{bad[0].line}")
    problems = {problem.problem_id: problem for problem in suite.problems}
    report = run_vectors(file, problems, products.products)
    _show(report, as_json=as_json)
    if not report.all_agree:
        raise typer.Exit(1)


def _first(pattern: str, folders: list[Path]) -> Path:
    """The first folder that has a file of the pattern."""
    from palio.records import InputError

    for folder in folders:
        if any(folder.glob(pattern)):
            return folder
    looked = ", ".join(str(folder) for folder in folders)
    raise InputError(
        f"no {pattern} found", where=looked, remedy="name it: --tasks DIR, --catalogue FILE"
    )


def _show(report: VectorReport, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        plain = msgspec.to_builtins(report)
        plain["disagreements"] = plain.get("disagreements", ())[:SHOWN]
        typer.echo(json.dumps(plain, indent=2))
        return
    for profile, agreed in report.agreed.items():
        typer.echo(f"{profile}: {agreed}/{report.total}")
    for one in report.disagreements[:SHOWN]:
        typer.echo(
            f"{report.file}:{one.line} {one.profile} {one.what}: "
            f"expected {one.expected}, got {one.got}"
        )
    if len(report.disagreements) > SHOWN:
        typer.echo(f"... and {len(report.disagreements) - SHOWN} more")


@app.command()
def run(
    folder: Path = RUN_FOLDER,
    suite: Path = typer.Option(..., help="The suite that was run (palio suite or task file)."),
    catalogue: list[Path] = typer.Option(
        ..., help="Catalogue of the runs: folder or product file; repeat for several."
    ),
    profile: list[str] = typer.Option(["oro"], help="upstream, oro, strict; may be repeated."),
    encoder: str = typer.Option("lexical", help="lexical, minilm or precomputed."),
    vectors_file: Path | None = typer.Option(
        None, "--vectors", help="Title vectors of the precomputed encoder, or MiniLM's folder."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Score stored trajectories again, without running them; old verdicts are kept."""
    from palio.judging import encoder_named
    from palio.judging.store import VERDICTS, append_verdicts
    from palio.records import PROFILES, ConfigError
    from palio.rollout.verdicts import Panel
    from palio.suites.files import read_any_suite
    from palio.world.catalogue import read_catalogues

    profiles = [name for name in PROFILES if name in profile]
    unknown = [name for name in profile if name not in PROFILES]
    if unknown:
        raise ConfigError(f"no profile {unknown[0]!r}", remedy=f"one of {', '.join(PROFILES)}")
    read, bad_rows = read_any_suite(suite)
    held, bad_lines = read_catalogues(catalogue)
    warn_of((*bad_rows, *bad_lines))
    products = {name: each.products for name, each in held.items()}
    titles = encoder_named(encoder, vectors_file)
    panel = Panel(read.problems, products, profiles, titles, unknown="refuse")
    where, trajectories = stored(folder)
    verdicts = [verdict for each in trajectories for verdict in panel.outcomes(each)]
    append_verdicts(where / VERDICTS, verdicts)
    counts: dict[str, Any] = {
        name: {
            "scored": sum(v.status == "scored" for v in verdicts if v.profile == name),
            "unscored": sum(v.status == "unscored" for v in verdicts if v.profile == name),
            "success": sum(v.success for v in verdicts if v.profile == name),
        }
        for name in profiles
    }
    summarise(where / VERDICTS, counts, as_json=as_json)
