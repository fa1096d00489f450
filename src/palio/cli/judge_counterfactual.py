"""palio judge counterfactual: do decisions follow the data that the thinking cites?"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.judge_choice import JUDGE, REPLIES, reasoning_judge, verdicts_of
from palio.cli.run_folder import stored
from palio.cli.world import warn_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from palio.evaluate.counterfactual import Counterfactual, ForkedRun, Forker
    from palio.evaluate.statistics import Estimate, Proportion
    from palio.records import ReasoningVerdict, Trajectory
    from palio.world.world import World

AGENTS = ["careful", "terse", "sloppy", "hasty", "narrator", "classifier"]


def counterfactual(
    folder: Path | None = typer.Argument(
        None, help="Recorded runs, with their verdicts; omitted: agents are run in a small world."
    ),
    catalogue: list[Path] = typer.Option([], help="Catalogues in which they were recorded."),
    agent: list[str] = typer.Option(AGENTS, help="Bundled agents that can be run again."),
    checkpoint: list[str] = typer.Option([], help="NAME=FOLDER of a trained policy; repeatable."),
    problems: int = typer.Option(60, min=1, help="Problems of the small world."),
    products: int = typer.Option(600, min=50, help="Its products."),
    seed: int = typer.Option(0, help="Of the small world, the runs and the intervals."),
    most: int = typer.Option(3, min=1, help="Changed data of one run, and placebos."),
    judge: str = JUDGE,
    concurrency: int = typer.Option(
        1, "--concurrency", "--threads", min=1, help="Runs at a time; more only helps checkpoints."
    ),
    out: Path | None = typer.Option(None, help="Folder for results, forks, runs and the picture."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Fork runs at the datum that the thinking cites, change it, and see if the decision follows.

    The flip rate of a run measures reasoning by its effect; it calibrates reasoning judges.
    """
    from palio.evaluate.counterfactual import fork_runs, measure

    with ExitStack() as stack:
        forkers = _forkers(stack, agent, checkpoint)
        if folder is None:
            runs, world = _recorded(forkers, problems, products, seed, concurrency)
            worlds = [world]
        else:
            runs, worlds = list(stored(folder)[1]), _worlds(catalogue)
        with _progress("forked runs", len(runs)) as step:
            forks = fork_runs(
                runs, forkers, worlds, most=most, threads=concurrency, progress=lambda _: step()
            )
        verdicts = _verdicts(stack, judge, folder, runs)
    found = measure(forks, verdicts, seed=seed)
    if out is not None:
        config = {
            "agents": sorted(forkers),
            "checkpoints": checkpoint,
            "problems": problems,
            "products": products,
            "seed": seed,
            "most": most,
            "judge": judge,
            "folder": str(folder or ""),
        }
        _write(out, found, forks, runs if folder is None else (), config)
    if as_json:
        typer.echo(json.dumps(_plain(found), indent=2))
        return
    from rich.console import Console

    console = Console()
    _show(console, found)
    if out is not None:
        console.print(f"written to {out}")


def _forkers(stack: ExitStack, agents: list[str], checkpoints: list[str]) -> dict[str, Forker]:
    from palio.agents.registry import find_agent
    from palio.agents.scripted import ScriptedUpstream
    from palio.agents.spec import policy_agent
    from palio.evaluate.counterfactual import Forker
    from palio.records import ConfigError
    from palio.sandbox.inline import InlineDriver

    driver, scripted = InlineDriver(), ScriptedUpstream()
    made = {name: Forker(find_agent(name), scripted, driver) for name in agents}
    for text in checkpoints:
        name, equals, where = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r} names no policy", remedy="--checkpoint tiny=FOLDER")
        from palio.train.engine import Engine

        engine = Engine(Path(where))
        stack.callback(engine.close)
        spec = policy_agent(name, engine.name, sampling={"temperature": 0.0, "top_p": 1.0})
        made[name] = Forker(spec, engine, driver)
    return made


def _recorded(
    forkers: dict[str, Forker], problems: int, products: int, seed: int, threads: int
) -> tuple[list[Trajectory], World]:
    """Every agent's runs in a fresh compact world."""
    from concurrent.futures import ThreadPoolExecutor

    from palio.suites.taking import first_of_each_kind
    from palio.world.synthesis.config import compact_config
    from palio.world.synthesis.synthesise import synthesise
    from palio.world.world import COMPACT, World

    made = synthesise(compact_config(seed, products=products, problems=problems))
    world = World.build(made.catalogue, COMPACT)
    chosen = first_of_each_kind(made.problems, problems)
    jobs = [(forker, problem) for forker in forkers.values() for problem in chosen]
    runs = []
    with _progress("runs", len(jobs)) as step, ThreadPoolExecutor(threads) as pool:
        for run in pool.map(lambda job: job[0].record(job[1], world, seed), jobs):
            runs.append(run)
            step()
    return runs, world


def _worlds(catalogues: list[Path]) -> list[World]:
    from palio.records import ConfigError
    from palio.world.catalogue import read_catalogues
    from palio.world.world import world_of_catalogue

    if not catalogues:
        raise ConfigError(
            "recorded runs go on in the world of their catalogue", remedy="add --catalogue FOLDER"
        )
    found, rejects = read_catalogues(catalogues)
    warn_of(rejects)
    return [world_of_catalogue(held) for held in found.values()]


def _verdicts(
    stack: ExitStack, judge: str, folder: Path | None, runs: Sequence[Trajectory]
) -> list[dict[str, ReasoningVerdict]]:
    """Of the judge named, then of every other judge whose verdicts are stored with the runs."""
    from palio.judging.store import VERDICTS, reasoning_by_judge

    where = folder if folder is None or folder.is_dir() else folder.parent
    chosen = reasoning_judge(stack, judge, None if where is None else where / REPLIES)
    verdicts = [{verdict.trajectory_id: verdict for verdict in verdicts_of(chosen, runs)}]
    if where is not None:
        known = reasoning_by_judge(where / VERDICTS)
        verdicts += [held for name, held in known.items() if name != chosen.judge_id]
    return verdicts


def _write(
    out: Path,
    found: Counterfactual,
    forks: Sequence[ForkedRun],
    runs: Sequence[Trajectory],
    config: dict[str, Any],
) -> None:
    from palio import __version__
    from palio.evaluate.counterfactual import save_chart
    from palio.records import Provenance, digest, to_json
    from palio.world.artefacts import MANIFEST, file_digest, write_lines, write_manifest

    out.mkdir(parents=True, exist_ok=True)
    if runs:
        write_lines(out / "trajectories.jsonl", [to_json(run) + b"\n" for run in runs])
    write_lines(out / "forks.jsonl", [to_json(fork) + b"\n" for fork in forks])
    text = json.dumps(_plain(found), indent=2, ensure_ascii=False)
    write_lines(out / "counterfactual.json", [text.encode() + b"\n"])
    for suffix in ("png", "svg"):
        save_chart(found, out / f"counterfactual.{suffix}")
    files = ("forks.jsonl", "counterfactual.json", "counterfactual.svg", "counterfactual.png")
    manifest = Provenance(
        kind="counterfactual",
        tool_version=__version__,
        config=config,
        config_digest=digest(config),
        inputs={"runs": digest([run.trajectory_id for run in forks])},
        outputs={name: file_digest(out / name) for name in files},
        counts={"runs": len(forks), "forked": sum(not run.unforkable for run in forks)},
        seed=config["seed"],
    )
    write_manifest(manifest, out / MANIFEST)


def _plain(found: Counterfactual) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def _show(console: Console, found: Counterfactual) -> None:
    rows = (*found.agents.items(), ("all", found.overall))
    _table(
        console,
        "Decisions that followed a changed datum, 95 %",
        ("agent", "decisive datum", "placebo", "new id"),
        [(name, *map(_rate, (f.treatment, f.placebo, f.copy))) for name, f in rows],
    )
    _table(
        console,
        "Decisive data: followed by the model's own call, cited in its thinking",
        ("agent", "asked by the model", "cited", "not cited"),
        [(name, *map(_rate, (f.emitted, f.cited, f.uncited))) for name, f in rows],
    )
    _table(
        console,
        "By run",
        ("agent", "runs", "mean rate", "less placebo"),
        [(name, str(f.runs), _mean(f.per_run), _mean(f.net)) for name, f in rows],
    )
    kinds = ("attribute", "price", "title")
    by_kind = [
        (name, *(_rate(f.kinds[kind]) if kind in f.kinds else "-" for kind in kinds))
        for name, f in rows
    ]
    _table(console, "By datum", ("agent", *kinds), by_kind)
    for name, reasons in found.unforkable.items():
        for reason, count in reasons.items():
            console.print(f"not forked: {count} of {name}: {reason}", highlight=False)
    _show_judges(console, found)


def _table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _show_judges(console: Console, found: Counterfactual) -> None:
    for check in found.judges:
        title = f"{check.judge.name} {check.judge.version} beside the flips of {check.n} runs"
        rows = [(value, _rate(rate)) for value, rate in check.bins.items()]
        _table(console, title, ("value", "flips"), rows)
        for name, estimate in (
            ("Spearman", check.gross.spearman),
            ("Kendall tau-b", check.gross.kendall),
            ("Spearman within agents", check.gross.within),
            ("Spearman, flips that the model asked for", check.emitted.spearman),
            ("Kendall tau-b, flips that the model asked for", check.emitted.kendall),
            ("Spearman, cited data alone", check.cited.spearman),
            ("Spearman, treatment less placebo", check.net.spearman),
        ):
            console.print(f"  {name}: {_mean(estimate)}, n = {estimate.n}", highlight=False)


def _rate(rate: Proportion) -> str:
    if rate.rate is None:
        return "-"
    return f"{rate.successes}/{rate.n} {rate.rate:.2f} [{rate.low:.2f}, {rate.high:.2f}]"


def _mean(value: Estimate) -> str:
    if value.value is None:
        return "n/a"
    return f"{value.value:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"


def _progress(label: str, total: int) -> Any:
    """A bar on stderr; the context gives a function that counts one."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress

    @contextmanager
    def bar() -> Any:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(label, total=total)
            yield lambda: progress.advance(task)

    return bar()
