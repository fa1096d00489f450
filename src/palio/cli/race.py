"""palio race: run agents over a suite, judge every run, show the standings."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.agent import DRIVER_HELP
from palio.cli.eval_inputs import check_unsealed
from palio.cli.judge_choice import JUDGE, REPLIES, pinned, reasoning_judge, threads_of
from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from palio.agents.spec import AgentSpec
    from palio.arena.standings import Standings
    from palio.broker.upstream import Upstream
    from palio.records import Profile, Suite
    from palio.rollout import Job, SuiteReport
    from palio.rollout import Progress as Step
    from palio.rollout.verdicts import Judged, ReasoningJudge
    from palio.sandbox.spec import Driver
    from palio.world.world import World

app = typer.Typer(
    help="Races: run agents over a suite, judge, rank; resume where a race was killed.",
    invoke_without_command=True,
)
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
PROFILE = typer.Option("oro", help="Outcome profile that ranks: upstream, oro or strict.")


@app.callback()
def race(
    context: typer.Context,
    agents: str = typer.Option("", help="Required, or --policy: agents or agent files, by commas."),
    policy: list[str] = typer.Option([], help="Also race the policy agent with this model."),
    model: str = typer.Option(
        "", help="Model of agent files: scripted-careful, or with --model-url to be named."
    ),
    suite: Path = typer.Option(None, help="Required: suite file, palio's or an imported kind."),
    catalogue: list[Path] = typer.Option([], help="Required: catalogue folder or product file."),
    out: Path = typer.Option(None, help="Required: run folder; a race left in it goes on."),
    world: str = WORLD,
    model_url: str = typer.Option("", help="OpenAI-compatible base URL; empty: scripted models."),
    api_key: str = typer.Option("", envvar="PALIO_API_KEY", help="Key of the model server."),
    profile: str = PROFILE,
    judge: str = JUDGE,
    limit: int = typer.Option(0, min=0, help="Only N problems, of all kinds; 0: all."),
    seed: int = typer.Option(0, help="Seed of every run."),
    seconds: float = typer.Option(300.0, min=0.1, help="Time-out a problem."),
    concurrency: int = typer.Option(4, min=1, help="Runs at a time."),
    retries: int = typer.Option(2, min=0, help="Further tries when infrastructure failed."),
    driver: str = typer.Option("auto", help=DRIVER_HELP),
    inline: bool = typer.Option(False, "--inline", help="The same as --driver inline."),
    broker: Path = typer.Option(None, help="TOML: models agents may ask, proofs, journal."),
    code: bool = typer.Option(False, "--code", help="Offer python_execute, in sandboxes, too."),
    as_json: bool = AS_JSON,
) -> None:
    """Race agents: palio race --agents careful,hasty --suite S.json --catalogue C --out RUN."""
    if context.invoked_subcommand is not None:
        return
    given = {"--agents": agents or policy, "--suite": suite, "--catalogue": catalogue, "--out": out}
    if missing := [option for option, value in given.items() if not value]:
        typer.echo(context.get_help())
        typer.secho(f"missing: {', '.join(missing)}", fg="red", err=True)
        raise typer.Exit(2)
    from palio.broker.limits import Limits
    from palio.broker.policy import read_policy
    from palio.rollout import run_suite

    ranked = _profile(profile)
    read, worlds = _inputs(suite, catalogue, world)
    served = model or ("" if model_url else "scripted-careful")
    jobs = _jobs(_specs(agents, policy, served, not model_url), read, worlds, limit, seed)
    with ExitStack() as stack:
        judging = reasoning_judge(stack, judge, out / REPLIES)
        report = run_suite(
            jobs,
            out,
            driver=_driver(stack, "inline" if inline else driver),
            upstream=_upstream(stack, model_url, api_key, agents),
            limits=Limits(seconds=seconds),
            concurrency=concurrency,
            retries=retries,
            config={"model_url": model_url or "scripted", "judge": pinned(judging)},
            command=shlex.join(["palio", *sys.argv[1:]]),
            progress=_progress(stack),
            policy=read_policy(broker),
            tools=_tools(code),
        )
        _report(report)
        _judge_and_show(out, read, worlds, ranked, judging, as_json=as_json)


@app.command()
def show(
    out: Path = typer.Argument(..., help="Run folder of a race."),
    as_json: bool = AS_JSON,
) -> None:
    """Show the standings of a race that was judged before."""
    from palio.arena.standings import Standings
    from palio.records import InputError, from_json

    path = out / "standings.json"
    if not path.is_file():
        raise InputError("no standings here", where=str(out), remedy="run `palio race --out` first")
    _show(from_json(path.read_bytes(), Standings, where=str(path)), as_json=as_json)


def _profile(name: str) -> Profile:
    from palio.records import PROFILES, ConfigError

    for profile in PROFILES:
        if profile == name:
            return profile
    raise ConfigError(f"no profile is called {name!r}", remedy=f"choose {', '.join(PROFILES)}")


def _tools(code: bool) -> tuple[str, ...]:
    from palio.world.tools import ALL_TOOLS, SEVEN_TOOLS

    return ALL_TOOLS if code else SEVEN_TOOLS


def _check_models(agents: str, model: str) -> None:
    from palio.records import ConfigError

    files = [name for name in agents.split(",") if name.strip().endswith(".py")]
    if files and not model:
        raise ConfigError(
            "an agent file asks for no model by itself, and --model-url has no default one",
            where=files[0].strip(),
            remedy="name it with --model",
        )


def _specs(agents: str, policies: list[str], model: str, scripted: bool) -> list[AgentSpec]:
    from palio.agents.registry import find_agent
    from palio.agents.scripted import check_models
    from palio.agents.spec import agent_from_file, policy_agent
    from palio.train.racer import racer_spec

    _check_models(agents, model)
    names = [name.strip() for name in agents.split(",") if name.strip()]
    own = {name: racer_spec(Path(name)) for name in names if name.endswith(".py")}
    if scripted:
        check_models([*policies, *(model for racer in own.values() if racer is None)])
    specs = [
        (own[name] or agent_from_file(name, model=model)) if name in own else find_agent(name)
        for name in names
    ]
    return [*specs, *(policy_agent(model, model) for model in policies)]


def _inputs(suite: Path, catalogues: list[Path], world: str) -> tuple[Suite, dict[str, World]]:
    from palio.suites.files import read_suite
    from palio.world.catalogue import read_catalogues
    from palio.world.world import world_of_catalogue

    problems = read_suite(suite)
    check_unsealed(problems.problems, suite.parent)
    found, rejects = read_catalogues(catalogues)
    warn_of(rejects)
    worlds = {name: world_of_catalogue(held, world) for name, held in found.items()}
    return problems, worlds


def _jobs(
    specs: list[AgentSpec], suite: Suite, worlds: dict[str, World], limit: int, seed: int
) -> list[Job]:
    from palio.records import ConfigError
    from palio.rollout import Job
    from palio.rollout.suite import world_of
    from palio.suites.taking import first_of_each_kind

    problems = first_of_each_kind(suite.problems, limit)
    if not problems or not specs:
        raise ConfigError(
            "there is nothing to race",
            where=f"suite {suite.suite_id}",
            remedy=f"{len(problems)} problems and {len(specs)} agents are named",
        )
    return [
        Job(spec, problem, world_of(problem, worlds), seed, suite.suite_id)
        for problem in problems
        for spec in specs
    ]


def _driver(stack: ExitStack, name: str) -> Driver:
    from palio.sandbox.choice import open_driver, opened

    return stack.enter_context(opened(open_driver(name)))


def _upstream(stack: ExitStack, url: str, api_key: str, agents: str) -> Upstream:
    """The model server; agents made from checkpoints have their own weights answer."""
    from palio.agents.scripted import ScriptedUpstream
    from palio.broker.upstream import HttpUpstream

    rest = stack.enter_context(HttpUpstream(url, api_key)) if url else ScriptedUpstream()
    files = [Path(name.strip()) for name in agents.split(",") if name.strip().endswith(".py")]
    if not files:
        return rest
    from palio.train.racer import with_checkpoints

    return stack.enter_context(with_checkpoints(rest, files))


def _progress(stack: ExitStack) -> Callable[[Step], None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = stack.enter_context(
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    )
    task = bar.add_task("racing", total=None)

    def note(step: Step) -> None:
        run = step.trajectory
        about = f"{run.agent.name} on {run.problem_id}: {run.ending}"
        bar.update(task, completed=step.done, total=step.total, description=about[:60])

    return note


def _report(report: SuiteReport) -> None:
    for note in report.notes:
        typer.secho(note, fg="yellow", err=True)
    endings = ", ".join(f"{count} {ending}" for ending, count in sorted(report.endings.items()))
    typer.echo(
        f"{report.ran} runs in {report.seconds:.1f} s ({endings or 'nothing left to run'}), "
        f"{report.skipped} were there already, {report.unscored} unscored",
        err=True,
    )


def _judge_and_show(
    out: Path,
    suite: Suite,
    worlds: dict[str, World],
    profile: Profile,
    judge: ReasoningJudge,
    *,
    as_json: bool,
) -> None:
    from palio.arena.standings import standing_entry, standings
    from palio.judging.store import one_judge
    from palio.records import to_json
    from palio.rollout import final_attempts, read_trajectories
    from palio.rollout.journal import FILE
    from palio.rollout.verdicts import Panel, judge_all, keep_verdicts
    from palio.world.artefacts import write_lines

    runs = final_attempts(read_trajectories(out / FILE))
    catalogues = {w.catalogue.catalogue_id: w.catalogue.products for w in worlds.values()}
    panel = Panel(suite.problems, catalogues, judge=judge, unknown="refuse")
    judged = list(judge_all(runs, panel, threads=threads_of(judge)))
    one_judge(run.verdicts.reasoning for run in judged if run.verdicts.reasoning)
    keep_verdicts(out, judged)
    made = standings(
        standing_entry(run.trajectory, run.outcome(profile), run.verdicts.reasoning)
        for run in judged
    )
    write_lines(out / "standings.json", [to_json(made) + b"\n"])
    _show(made, as_json=as_json)
    _fail_when_nothing_counts(judged, profile)


def _fail_when_nothing_counts(judged: list[Judged], profile: Profile) -> None:
    """Exit 1 when infrastructure left every run without a score: such standings say nothing."""
    outcomes = [run.outcome(profile) for run in judged]
    if not outcomes or any(outcome.status == "scored" for outcome in outcomes):
        return
    faults = Counter(o.fault.what if o.fault else "no reason is recorded" for o in outcomes)
    what, count = faults.most_common(1)[0]
    typer.secho(
        f"no run was scored: all {len(outcomes)} are open, {count} of them because: {what}. "
        "Mend that and run the same command again: open runs are run again.",
        fg="red",
        err=True,
    )
    raise typer.Exit(1)


def _show(made: Standings, *, as_json: bool) -> None:
    from palio.records import to_json

    if as_json:
        typer.echo(to_json(made).decode())
        return
    from rich.console import Console
    from rich.table import Column, Table

    names = ("rank", "tie", "agent", "final", "95 %", "success", "quality", "n", "open")
    table = Table(*(Column(name, no_wrap=True) for name in names), box=None, padding=(0, 2, 0, 0))
    for row in (*made.ranked, *made.unranked, *made.ineligible):
        table.add_row(
            "-" if row.rank is None else str(row.rank),
            "-" if row.group is None else str(row.group),
            row.agent[:40],
            "-" if row.final is None else f"{row.final:.3f}",
            f"{row.final_low:.3f}-{row.final_high:.3f}",
            "-" if row.success_rate is None else f"{row.success_rate:.3f}",
            "-" if row.mean_quality is None else f"{row.mean_quality:.2f}",
            str(row.n),
            str(row.unscored + row.unjudged),
        )
    Console().print(table)
