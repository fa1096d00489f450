"""palio experiment: plans that were written down first, carried out arm by arm, and told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.given import refuse_idle
from palio.cli.keys import SAMPLER_KEY, TEACHER_KEY
from palio.cli.screen import Screen

if TYPE_CHECKING:
    from palio.evaluate.experiment.given import LabRuns
    from palio.evaluate.experiment.plan import Plan
    from palio.evaluate.experiment.sealed import Entry

app = typer.Typer(
    help="Controlled experiments: pre-registered plans, shared lab, intervals over seeds.",
    no_args_is_help=True,
)

PLANS = typer.Option([], "--plan", help="Bundled plan or TOML file; all bundled ones by default.")
LAB = typer.Option(None, "--lab", help="TOML with settings of the lab that differ.")
SUITE_SEED = typer.Option(None, help="Seed of worlds, problems and pools: an auditor picks it.")
RUNS = Path("runs/experiment")
OUT = typer.Option(RUNS, help="Folder of the lab; unfinished work goes on.")


@app.command("list")
def list_plans(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Show the bundled plans: what they ask, their arms and contrasts."""
    from palio.evaluate.experiment.plan import load_plan, plan_names
    from palio.records import to_json

    plans = [load_plan(name) for name in plan_names()]
    if as_json:
        typer.echo(to_json(plans).decode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("plan", "question", "arms", "contrasts", "seeds", "digest")
    for plan in plans:
        counts = (str(len(plan.arms)), str(len(plan.contrasts)), str(plan.seeds))
        table.add_row(plan.name, plan.question, *counts, plan.digest()[7:19])
    Console(width=max(Console().width, 110)).print(table)


@app.command()
def run(
    plan: list[str] = PLANS,
    seeds: int = typer.Option(2, min=1, help="Seeds of each arm; a later run may ask for more."),
    suite_seed: int | None = SUITE_SEED,
    lab: Path | None = LAB,
    out: Path = OUT,
    most: int = typer.Option(0, "--most", min=0, help="Runs to make now; 0: all that are left."),
    part: str = typer.Option("1/1", help="I/N: the I-th share of the runs, for N processes."),
    teacher_key: str = TEACHER_KEY,
    sampler_key: str = SAMPLER_KEY,
) -> None:
    """Make the runs that are still missing; interrupt at will, the next call goes on."""
    from palio.evaluate.experiment.config import read_lab
    from palio.evaluate.experiment.lab import Lab
    from palio.train.stage import Keys

    plans = _plans(plan)
    config = read_lab(lab, suite_seed)
    with Screen() as screen:
        place = Lab(config, out, screen, keys=Keys(teacher_key, sampler_key))
        place.check(plans)
        place.prepare()
        tasks = place.shared_out(place.open_tasks(plans, seeds), *_part(part))
        tasks = tasks[:most] if most else tasks
        screen.begin("runs", len(tasks))
        failed = place.run(tasks, screen.advance)
        screen.end("runs", 0.0, skipped=not tasks)
    for task, error in failed:
        typer.echo(f"{task.name} failed: {error}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def prepare(
    context: typer.Context,
    suite_seed: int | None = SUITE_SEED,
    lab: Path | None = LAB,
    out: Path = OUT,
    executor: str = typer.Option(
        "processes",
        help="Of the rollouts: processes, inline or ray; the lab's `workers` at a time.",
    ),
    address: str = typer.Option("", help="Ray cluster to use; a local one is started without."),
) -> None:
    """Make what all runs share: worlds, pools, rollouts, judged rows."""
    from palio.evaluate.experiment.config import read_lab
    from palio.evaluate.experiment.lab import Lab
    from palio.rollout.cluster import executor_named

    config = read_lab(lab, suite_seed)
    chosen = executor_named(executor, config.workers)
    if chosen != "ray":
        refuse_idle(context, ["--address"], f"with --executor {chosen}", "say --executor ray")
    with Screen() as screen:
        Lab(config, out, screen, executor=chosen, address=address).prepare()


def _part(text: str) -> tuple[int, int]:
    """(index from 0, parts) of a text such as 2/4."""
    from palio.records import ConfigError

    first, _, last = text.partition("/")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ConfigError(f"--part {text!r}", remedy="say I/N, such as 2/4")
    return int(first) - 1, int(last)


def _plans(names: list[str]) -> list[Plan]:
    from palio.evaluate.experiment.plan import load_plans

    return load_plans(names)


@app.command()
def report(
    plan: list[str] = PLANS,
    suite_seed: int | None = SUITE_SEED,
    lab: list[Path] = typer.Option(
        [],
        "--lab",
        help="TOML with settings of the lab that differ; several labs, several times. A lab's "
        "folder has its own.",
    ),
    runs: list[Path] = typer.Option(
        [], "--runs", help="Lab folder, or a file of runs, of each --lab; else runs/experiment."
    ),
    out: Path | None = typer.Option(
        None, help="Folder of evidence.md, pictures below it; by default that of the runs."
    ),
    intro: Path | None = typer.Option(
        None, help="Markdown beside the results; a section called like a plan stands with it."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Analyse the runs that there are as their plans say, and write page and pictures."""
    from palio.evaluate.experiment.evidence import PAGE, write_evidence
    from palio.evaluate.experiment.given import check_given
    from palio.evaluate.experiment.prose import read_intro
    from palio.records import to_json

    out = out or _beside(runs)
    text = read_intro(intro) if intro else ""
    plans, labs = _plans(plan), _labs(lab, runs, suite_seed)
    for line in check_given(labs, runs or [RUNS], plans, every=not plan):
        typer.secho(line, fg="yellow", err=True)
    results = write_evidence(plans, labs, out, text, intro_path=str(intro or ""))
    if as_json:
        typer.echo(to_json(results).decode())
        return
    for result in results:
        state = "complete" if result.complete else f"{result.seeds} seeds so far"
        typer.echo(f"{result.plan:12} {state}")
    typer.echo(f"page {out / PAGE}")


def _beside(runs: list[Path]) -> Path:
    """Where the page of one lab goes when nobody says: into its folder, or beside a file of runs.

    Raises:
        ConfigError: the runs are of several labs.
    """
    from palio.records import ConfigError

    if len(runs) > 1:
        raise ConfigError("a page of several labs has no folder of its own", remedy="name --out")
    place = runs[0] if runs else RUNS
    return place.parent if place.is_file() else place


def _labs(labs: list[Path], runs: list[Path], suite_seed: int | None) -> list[LabRuns]:
    """Each lab with its runs."""
    from palio.evaluate.experiment.given import LabRuns, lab_of
    from palio.evaluate.experiment.runs import read_runs
    from palio.evaluate.experiment.sealed import read_log
    from palio.records import ConfigError, InputError

    places = runs or [RUNS]
    configs: Sequence[Path | None] = labs or [None]
    if len(places) != len(configs):
        raise ConfigError(
            f"{len(configs)} labs and {len(places)} places of runs",
            remedy="say --lab and --runs equally often, in the same order",
        )
    for place in places:
        if not place.exists():
            raise InputError(
                "no runs here",
                where=str(place),
                remedy="name a lab's folder or a file of runs with --runs",
            )
    return [
        LabRuns(lab_of(place, config, suite_seed), read_runs(place), read_log(_folder(place)))
        for config, place in zip(configs, places, strict=True)
    ]


def _folder(place: Path) -> Path:
    """The folder of a lab or of a file of runs; a file alone does not know of openings."""
    from palio.evaluate.experiment.sealed import LOG

    if place.is_dir() or (place.parent / LOG).is_file():
        return place if place.is_dir() else place.parent
    typer.secho(
        f"{place}: there is no {LOG} beside it, so the page cannot tell openings of the sealed "
        "pool; put the lab's there, if it has one",
        fg="yellow",
        err=True,
    )
    return place.parent


@app.command()
def sealed(
    context: typer.Context,
    out: Path = OUT,
    checkpoint: Path | None = typer.Option(None, help="What is examined; without: show the log."),
    reason: str = typer.Option("", help="The final claim that this opening is for."),
    who: str = typer.Option("", envvar="USER", help="Who opens it."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Examine a checkpoint on the sealed pool; every opening is logged, with its reason."""
    from palio.evaluate.experiment.sealed import open_sealed, openings, read_config, read_log
    from palio.records import to_json

    if checkpoint is None:
        remedy = "name what is examined with --checkpoint"
        refuse_idle(context, ["--reason", "--who"], "where the log is shown", remedy)
    read_config(out)  # where there is no lab, "never opened" would be no answer
    if checkpoint is not None:
        before = len(openings(read_log(out)))
        typer.echo(f"the sealed pool was opened {before} times before", err=True)
        with Screen() as screen:
            open_sealed(out, checkpoint, reason, screen, who=who)
    entries = read_log(out)
    if as_json:
        typer.echo(to_json(openings(entries)).decode())
        return
    if not entries:
        typer.echo("never opened")
        return
    for one in openings(entries):
        name = one.began.run or one.began.checkpoint[7:19]
        found = _found(one.result) + (f", resumed {one.resumed} times" if one.resumed else "")
        typer.echo(f"{one.began.opening:3} {one.began.at} {name}: {found}; {one.began.why}")
    typer.echo(f"head {entries[-1].own}")


def _found(result: Entry | None) -> str:
    """What an opening found, with its interval and the rollouts that are in no rate."""
    if result is None:
        return "broken off"
    lost = f", {result.unscored} unscored" if result.unscored else ""
    lost += f", {result.timed_out} stopped by the clock" if result.timed_out else ""
    rate = result.rates.get("overall")
    if rate is None:
        return f"nothing scored{lost}"
    shown = f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %"
    return f"{rate.successes} of {rate.n} (95 %: {shown}){lost}"
