"""palio train: run a training recipe over a corpus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from palio.cli.given import refuse_idle
from palio.cli.keys import SAMPLER_KEY, TEACHER_KEY
from palio.cli.train_card import card
from palio.cli.train_snapshot import snapshot, start, template

if TYPE_CHECKING:
    from palio.train.audit import RunAudit
    from palio.train.curves import Curve
    from palio.train.ground import Ground
    from palio.train.recipe import Recipe
    from palio.train.run import Trained


class RecipeFirst(TyperGroup):
    """`palio train RECIPE ...` is `palio train run RECIPE ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A first word that is no command is a recipe."""
        known = args and (args[0] in self.commands or args[0].startswith("-"))
        return super().resolve_command(ctx, args if known else ["run", *args])


app = typer.Typer(
    help="Training: `palio train RECIPE --corpus C --out DIR` makes checkpoints.\n\n"
    "`palio train RECIPE --dry-run` tries the mechanics; `palio train run --help`: all options.",
    no_args_is_help=True,
    cls=RecipeFirst,
)
app.command()(start)
app.command()(snapshot)
app.command()(template)
app.command()(card)


@app.command()
def run(
    context: typer.Context,
    recipe: str = typer.Argument(help="A bundled recipe (demo, tiny, ...), or a TOML file."),
    corpus: Path | None = typer.Option(None, help="Corpus folder of `palio corpus build`."),
    out: Path | None = typer.Option(None, help="Run folder; a run that was stopped goes on."),
    suite: Path | None = typer.Option(None, help="Suite with the training problems."),
    catalogue: list[Path] = typer.Option([], help="Catalogue of the suite; repeat for several."),
    pools: Path | None = typer.Option(None, help="Problem id -> pool; default: the corpus'."),
    encoder: str = typer.Option("lexical", help="Title similarity: lexical or minilm."),
    seed: int = typer.Option(0, help="Added to the recipe's seed."),
    threads: int = typer.Option(2, min=1, help="Worker threads; no influence on the result."),
    minutes: float = typer.Option(0.0, min=0.0, help="Time limit of the token-counted stages."),
    redo: bool = typer.Option(False, "--redo", help="Do a changed stage and all after it again."),
    uncertified: bool = typer.Option(
        False, "--uncertified", help="Take a corpus without a certificate."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Mechanics only, at a cut-down model."),
    teacher_key: str = TEACHER_KEY,
    sampler_key: str = SAMPLER_KEY,
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Train all stages of a recipe; finished stages are skipped."""
    import msgspec

    from palio.records import ConfigError
    from palio.train.ranges import check_recipe
    from palio.train.reading import load_recipe
    from palio.train.recipe import shortened
    from palio.train.run import Options, train
    from palio.train.stage import Keys

    chosen = load_recipe(recipe)
    if seed:
        chosen = msgspec.structs.replace(chosen, seed=chosen.seed + seed)
    if minutes:
        chosen = shortened(chosen, minutes)
    check_recipe(chosen, recipe)  # with what the options changed
    if dry_run:
        dry = ["--encoder", "--uncertified", "--teacher-key", "--sampler-key"]
        refuse_idle(context, dry, "in a dry run", "leave --dry-run out")
        data = {"--corpus": corpus, "--suite": suite, "--catalogue": catalogue, "--pools": pools}
        _rehearse(chosen, out, data, threads=threads, redo=redo, as_json=as_json)
        return
    if corpus is None or out is None:
        raise ConfigError("name --corpus and --out", remedy="or say --dry-run")
    _check_problems(context, chosen, suite)
    with _Bars() as bars:
        options = Options(
            threads=threads,
            redo=redo,
            uncertified=uncertified,
            keys=Keys(teacher_key, sampler_key),
            recipe=recipe,
            report=bars.step,
        )
        ground = _ground(suite, catalogue, pools or _pools_of(corpus), encoder) if suite else None
        made = train(chosen, corpus, out, ground=ground, options=options)
    _show(made, as_json)


def _pools_of(corpus: Path) -> Path:
    """The folder in which a corpus' pools are, also where one of its files is named.

    Raises:
        ConfigError: it is a file by itself.
    """
    from palio.corpus.build import POOL_FILE
    from palio.records import ConfigError

    folder = corpus.parent if corpus.is_file() else corpus
    if corpus.is_file() and not (folder / POOL_FILE).is_file():
        raise ConfigError(
            f"there is no {POOL_FILE} beside the rows, so nothing tells which problems are for "
            "training",
            where=str(corpus),
            remedy="name a corpus folder, or a file of problem id -> pool with --pools",
        )
    return folder


def _check_problems(context: typer.Context, recipe: Recipe, suite: Path | None) -> None:
    """Refuse options about training problems where there are none, or where no stage runs any.

    Raises:
        ConfigError: names them.
    """
    from palio.train.stages import kind_named

    about = ["--catalogue", "--pools", "--encoder"]
    if not any(kind_named(each.kind).runs_problems(each.settings) for each in recipe.stages):
        where, remedy = "for a recipe that rolls nothing out", "choose one that does"
        refuse_idle(context, ["--suite", *about], where, remedy)
    if suite is None:
        refuse_idle(context, about, "without --suite", "name the suite")


def _rehearse(
    recipe: Recipe,
    out: Path | None,
    data: Mapping[str, Any],
    *,
    threads: int,
    redo: bool,
    as_json: bool,
) -> None:
    """A dry run. It makes its own rows and problems, so that data named beside it is a mistake."""
    from palio.records import ConfigError
    from palio.train.dry import dry_run

    given = [option for option, value in data.items() if value]
    if given:
        raise ConfigError(
            f"a dry run makes its own rows and problems and reads no {' and no '.join(given)}",
            remedy="leave them out, or leave out --dry-run",
        )
    with _Bars() as bars:
        made = dry_run(recipe, out, report=bars.step, threads=threads, redo=redo)
    _show(made, as_json, dry=True)


def _ground(suite: Path, catalogues: list[Path], pools: Path, encoder: str) -> Ground:
    from palio.judging.encoders import encoder_named
    from palio.train.ground import open_ground

    return open_ground(suite, catalogues, pools, encoder=encoder_named(encoder))


def _show(made: Trained, as_json: bool, *, dry: bool = False) -> None:
    if as_json:
        import msgspec

        plain = [
            {**msgspec.to_builtins(stage, enc_hook=str), "mechanics_only": dry}
            for stage in made.stages
        ]
        typer.echo(json.dumps({"stages": plain, "final": str(made.final)}, indent=2))
        return
    for stage in made.stages:
        told = ", ".join(f"{name} {n:,}" for name, n in stage.counts.items())
        told += "".join(f", {name} {value:.3g}" for name, value in stage.measures.items())
        state = " (was finished)" if stage.skipped else ""
        typer.echo(f"{stage.name:10} {told}{state}")
    if dry:
        typer.echo("mechanics only: a dry run shows that the stages work together, no result")
        return
    typer.echo(f"final: {made.final}")
    if made.shortened:
        typer.echo("a time limit cut the schedule short: the result depends on this machine")


class _Bars:
    """One progress bar a stage on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, step: Any) -> None:
        """Move the bar of a stage."""
        if step.stage not in self._tasks:
            self._tasks[step.stage] = self._progress.add_task(step.stage, total=1.0)
        text = f"{step.number}/{step.stages} {step.stage}: {step.note}"
        self._progress.update(self._tasks[step.stage], completed=step.share, description=text)


@app.command()
def audit(
    context: typer.Context,
    run_folder: Path = typer.Argument(help="Run of `palio train`, or lab of `palio experiment`."),
    corpus: Path | None = typer.Option(None, help="Corpus folder that a run was trained on."),
    suite: Path | None = typer.Option(None, help="Suite that the corpus was built with."),
    also: list[Path] = typer.Option([], help="Corpus of a run that it began with; repeatable."),
    plan: list[str] = typer.Option([], help="Plans of a lab that are not bundled, TOML."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Count what stages saw of held-out problems; exit 1 if one trained outside its pool.

    Exit 1, too, if a stage left no record of its rollouts, or if no run at hand made the weights
    that were begun with. Of a public model nobody can know: that is told, and is no fault. Nor is
    a folder that cannot be written to, where audit.json is told as not written.
    """
    from palio.evaluate.experiment.audit import audit_lab, is_lab
    from palio.records import ConfigError, Record, to_json
    from palio.train.audit import audit_run, write_audit

    kept: Record
    if is_lab(run_folder):
        theirs = ["--corpus", "--suite", "--also"]
        refuse_idle(context, theirs, "for a lab, which holds its own", "name a run of palio train")
        from palio.evaluate.experiment.plan import load_plan, plan_names

        found = audit_lab(run_folder, [load_plan(name) for name in (*plan_names(), *plan)])
        read = {
            f"{arm.plan}/{arm.arm}/{arm.seed}{' (on purpose)' if arm.exposes else ''}": arm.saw
            for arm in found.arms
        }
        clean, kept = found.clean, found
    elif corpus is None or suite is None:
        raise ConfigError("name --corpus and --suite of the run")
    else:
        refuse_idle(context, ["--plan"], "for a run of palio train", "name a lab")
        own = audit_run(run_folder, corpus, suite, also)
        read, kept = {"": own}, own
        clean = own.verdict != "outside" and not own.unknown and not own.lost
    if as_json:
        typer.echo(to_json(kept).decode())
    else:
        _show_audit(read)
    if unwritten := write_audit(run_folder, kept):
        remedy = "to show it on a card, audit a copy of the folder that can be written to"
        typer.echo(f"{unwritten} ({remedy})", err=True)
    for name, saw in read.items():
        _object(name, saw)
    if not clean:
        raise typer.Exit(1)


def _object(run: str, saw: RunAudit) -> None:
    """What is wrong with what a run saw, on standard error."""
    head = f"{run}: " if run else ""
    for each in saw.templates if len(saw.templates) > 1 else ():
        typer.echo(f"{head}stages were trained with different chat templates: {each}", err=True)
    for name in saw.unknown:
        typer.echo(f"{head}stage {name} left no record of what it rolled out", err=True)
    for origin in (*saw.lost, *saw.public):
        typer.echo(f"{head}{origin}", err=True)
    for problem in saw.outside[:10]:
        typer.echo(f"{head}problem {problem} is not in the training pool", err=True)


def _show_audit(read: dict[str, RunAudit]) -> None:
    from rich.console import Console
    from rich.table import Table

    targets = next(iter(read.values())).targets
    pools = [f"{pool} targets shown, of {count:,}" for pool, count in targets.items()]
    head = ["run"] if len(read) > 1 else []
    table = Table(*head, "stage", "rows", "rollouts", "problems", "outside", *pools, "shown in")
    for name, saw in read.items():
        for stage in saw.stages:
            rollouts = "unknown" if stage.rollouts is None else f"{stage.rollouts:,}"
            counts = (stage.problems, len(stage.outside), *stage.targets.values(), stage.showing)
            shown = (f"{count:,}" for count in counts)
            own = [name] if head else []
            table.add_row(*own, stage.name, f"{stage.rows:,}", rollouts, *shown)
    Console(width=max(Console().width, 110)).print(table)
    for stage in read[""].stages if "" in read else ():
        told = ", ".join(f"{what} {value}" for what, value in stage.digests.items())
        typer.echo(f"{stage.name}: {told or 'its checkpoint tells no template and no rows'}")
    if "" in read:
        _show_origins(read[""])


def _show_origins(saw: RunAudit) -> None:
    """What the runs saw whose weights went into this one, and the verdict on all of it."""
    for origin in saw.origins or ():
        if origin.made_by:
            typer.echo(str(origin))
        for stage in origin.stages:
            rollouts = "unknown" if stage.rollouts is None else f"{stage.rollouts:,}"
            typer.echo(
                f"  {stage.name}: {stage.rows:,} rows, rollouts {rollouts}, {stage.problems:,} "
                f"problems, {len(stage.outside):,} outside the training pool"
            )
    typer.echo(f"verdict: {saw.verdict}")


@app.command()
def curve(
    context: typer.Context,
    runs: list[Path] = typer.Argument(help="Run folders of `palio train`, or stage folders."),
    out: Path | None = typer.Option(None, help="Draw a picture, .png or .svg, runs side by side."),
    as_json: bool = typer.Option(False, "--json", help="Print every measurement as JSON."),
) -> None:
    """Show what the stages of runs logged: losses, rewards, margins, calls."""
    from palio.train.curves import draw_curves, labels_of, read_curves

    named = labels_of(runs)
    if out is not None:
        refuse_idle(context, ["--json"], "beside --out", "ask for numbers without --out")
        typer.echo(f"wrote {draw_curves(named, out)}")
        return
    read = {label: read_curves(folder) for label, folder in named.items()}
    if as_json:
        rows = [
            {"run": label, "stage": curve.stage, "kind": curve.kind, **row}
            for label, curves in read.items()
            for curve in curves
            for row in curve.rows
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    for label, curves in read.items():
        for each in curves:
            _show_curve(label, each)


def _show_curve(label: str, curve: Curve) -> None:
    """One stage as a table: how far it was, and the columns that its picture would show."""
    from rich.console import Console
    from rich.table import Table

    from palio.train.curves import shown

    held = {name for row in curve.rows for name in row}
    far = [name for name in ("step", "tokens") if name in held]
    names = [name for panel in shown(curve) for name in panel.names if name in held]
    more = [name for name in ("rate", "tokens_per_s", "seconds") if name in held]
    table = Table(*far, *names, *more, title=f"{label}: {curve.stage}", title_justify="left")
    for row in curve.rows:
        table.add_row(*(_figure(row.get(name)) for name in (*far, *names, *more)))
    Console(width=max(Console().width, 110)).print(table)


def _figure(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
