"""palio eval: roll a policy out on a suite, score floors on it, compare two evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.eval_contamination import contamination
from palio.cli.eval_diagnose import diagnose
from palio.cli.eval_steps import steps
from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from rich.console import Console

    from palio.evaluate.comparison import Comparison
    from palio.evaluate.floors import FloorResult
    from palio.evaluate.policy import EvalSettings, Policy
    from palio.evaluate.report_data import StageResult
    from palio.evaluate.results import EvalResult
    from palio.evaluate.rollouts import Hands, Progress
    from palio.judging.encoders import TitleEncoder
    from palio.records import Problem
    from palio.world.world import World

app = typer.Typer(help="Evaluate policies: ASR, pass@k, floors, paired.", no_args_is_help=True)
app.command()(contamination)
app.command()(diagnose)
app.command()(steps)

AS_JSON = typer.Option(False, "--json", help="Print JSON.")
SUITE = typer.Option(..., "--suite", help="Suite file.")
CATALOGUES = typer.Option(..., "--catalogue", help="Catalogue of the suite; repeat for several.")
ENCODER = typer.Option("lexical", "--encoder", help="Title similarity: lexical or minilm.")
LIMIT = typer.Option(0, "--limit", min=0, help="Only N problems, of all kinds; 0 = all.")
CORPUS = typer.Option(None, "--corpus", help="Only problems of a pool of this corpus.")
POOL = typer.Option("heldout", "--pool", help="The pool of --corpus: heldout or development.")


@app.command()
def run(
    suite: Path = SUITE,
    catalogue: list[Path] = CATALOGUES,
    out: Path = typer.Option(..., "--out", help="Folder for rollouts; resumed when it exists."),
    model: str = typer.Option("", "--model", help="Model name; scripted-* needs no server."),
    base_url: str = typer.Option("", "--base-url", help="OpenAI-compatible endpoint, with /v1."),
    api_key: str = typer.Option("", envvar="PALIO_API_KEY", help="Bearer token of --base-url."),
    checkpoint: Path | None = typer.Option(None, "--checkpoint", help="Folder of a checkpoint."),
    name: str = typer.Option("", "--name", help="Name in tables; by default the model's."),
    k: int = typer.Option(0, "--k", min=0, help="Also draw k samples a problem for pass@k."),
    temperature: float = typer.Option(1.0, "--temperature", min=0.01, help="Of the k samples."),
    seed: int = typer.Option(0, "--seed", help="Seed of samples and intervals."),
    threads: int = typer.Option(16, "--threads", min=1, help="Rollouts in flight, a worker."),
    max_tokens: int = typer.Option(0, "--max-tokens", min=0, help="Of one turn; 0: the server's."),
    seconds: float = typer.Option(300.0, "--seconds", min=1.0, help="Wall clock of a rollout."),
    executor: str = typer.Option("inline", "--executor", help="inline: in this process; or ray."),
    workers: int = typer.Option(2, "--workers", min=1, help="Processes of ray."),
    address: str = typer.Option("", "--address", help="Ray cluster; a local one is started else."),
    gpus: float = typer.Option(0.0, "--gpus", min=0.0, help="GPUs of each ray worker."),
    world: str = WORLD,
    encoder: str = ENCODER,
    limit: int = LIMIT,
    corpus: Path | None = CORPUS,
    pool: str = POOL,
    as_json: bool = AS_JSON,
) -> None:
    """Greedy ASR by intent with intervals and floors; with --k also sampled pass@1 and pass@k."""
    import msgspec

    from palio.broker.limits import Limits
    from palio.evaluate.cluster import PolicySource
    from palio.evaluate.floors import compare_with_floor
    from palio.evaluate.policy import EvalSettings
    from palio.evaluate.report_data import StageResult
    from palio.suites.clusters import leak_clusters

    problems, worlds, titles = _inputs(
        _problems(suite, limit, corpus, pool), catalogue, world, encoder
    )
    clusters = leak_clusters(problems).cluster_of
    limits = Limits(seconds=seconds)
    once = EvalSettings(seed=seed, threads=threads, max_tokens=max_tokens, limits=limits)
    many = msgspec.structs.replace(once, samples=k or 1, temperature=temperature)
    source = PolicySource(model, base_url, api_key, checkpoint, name)
    ray = _ray(executor, workers=workers, address=address, gpus=gpus)
    with nullcontext(source.closed()) if ray else source.open() as policy:
        hands = partial(ray, source, worlds, titles) if ray else None
        evaluated = _evaluator(policy, problems, worlds, titles, out, clusters, hands)
        result = evaluated("greedy", once)
        stage = StageResult(
            name=policy.name,
            origin="scripted" if model.startswith("scripted-") else "learned",
            greedy=result,
            sampled=evaluated(f"sampled-{k}", many) if k else None,
        )
    below = _below(problems, worlds, titles, clusters, seed)
    rows = compare_with_floor(result, below[0], problems, clusters=clusters)
    _show([stage], below, rows, as_json)


def _evaluator(
    policy: Policy,
    problems: tuple[Problem, ...],
    worlds: dict[str, World],
    titles: TitleEncoder,
    out: Path,
    clusters: dict[str, str],
    hands: Callable[[EvalSettings], AbstractContextManager[Hands]] | None,
) -> Callable[[str, EvalSettings], EvalResult]:
    from palio.evaluate.policy import evaluate_policy

    def evaluated(plan: str, settings: EvalSettings) -> EvalResult:
        with _progress(f"{policy.name}, {plan}", len(problems) * settings.samples) as show:
            return evaluate_policy(
                policy,
                problems,
                worlds,
                titles,
                out=out / plan,
                settings=settings,
                clusters=clusters,
                progress=show,
                hands=hands(settings) if hands else None,
            )

    return evaluated


def _ray(executor: str, **options: Any) -> Callable[..., AbstractContextManager[Hands]] | None:
    """Makes the workers of an evaluation; None: threads of this process.

    Raises:
        ConfigError: there is no such executor.
    """
    from palio.evaluate.cluster import ray_hands
    from palio.records import ConfigError

    if executor not in ("inline", "ray"):
        raise ConfigError(f"no executor {executor!r}", remedy="inline or ray")
    return partial(ray_hands, **options) if executor == "ray" else None


@app.command()
def floors(
    suite: Path = SUITE,
    catalogue: list[Path] = CATALOGUES,
    seed: int = typer.Option(0, "--seed", help="Seed of drawn answers and intervals."),
    world: str = WORLD,
    encoder: str = ENCODER,
    limit: int = LIMIT,
    corpus: Path | None = CORPUS,
    pool: str = POOL,
    as_json: bool = AS_JSON,
) -> None:
    """What answers that read nothing score: first hit and random hit of the raw request."""
    from palio.suites.clusters import leak_clusters

    problems, worlds, titles = _inputs(
        _problems(suite, limit, corpus, pool), catalogue, world, encoder
    )
    clusters = leak_clusters(problems).cluster_of
    _show([], _below(problems, worlds, titles, clusters, seed), (), as_json)


def _below(
    problems: tuple[Problem, ...],
    worlds: dict[str, World],
    titles: TitleEncoder,
    clusters: dict[str, str],
    seed: int,
) -> list[FloorResult]:
    """All floors on the same problems."""
    from palio.evaluate.floors import FLOORS, evaluate_floor

    return [
        evaluate_floor(floor, problems, worlds, titles, clusters=clusters, seed=seed)
        for floor in FLOORS
    ]


@app.command()
def compare(
    a: Path = typer.Argument(..., help="Folder of a greedy evaluation (…/greedy)."),
    b: Path = typer.Argument(..., help="Folder of another one on the same suite."),
    suite: Path = SUITE,
    limit: int = LIMIT,
    corpus: Path | None = CORPUS,
    pool: str = POOL,
    profile: str = typer.Option("oro", "--profile", help="oro or strict."),
    as_json: bool = AS_JSON,
) -> None:
    """Two greedy evaluations paired by problem: difference, interval, exact test, Holm."""
    import msgspec

    from palio.evaluate.pairing import compare_results
    from palio.evaluate.policy import load_result
    from palio.evaluate.tables import comparison_table
    from palio.records import ConfigError
    from palio.suites.clusters import leak_clusters

    if profile not in ("oro", "strict"):
        raise ConfigError(f"profile {profile!r} is not evaluated", remedy="oro or strict")
    problems = _problems(suite, limit, corpus, pool)
    clusters = leak_clusters(problems).cluster_of
    first, second = (load_result(folder, problems, clusters) for folder in (a, b))
    rows = compare_results(
        first,
        second,
        problems,
        profile="strict" if profile == "strict" else "oro",
        clusters=clusters,
    )
    if as_json:
        _print_json(msgspec.to_builtins(rows))
        return
    _wide().print(comparison_table(rows))


def _problems(suite: Path, limit: int, corpus: Path | None, pool: str) -> tuple[Problem, ...]:
    """The suite's problems, or those of them that a corpus has in a pool."""
    from palio.corpus.build import read_pools
    from palio.records import InputError
    from palio.suites.files import read_suite
    from palio.suites.taking import first_of_each_kind

    problems = read_suite(suite).problems
    if corpus is not None:
        pool_of = read_pools(corpus)
        held = tuple(each for each in problems if pool_of.get(each.problem_id) == pool)
        if not held:
            raise InputError(
                f"none of the suite's {len(problems)} problems is in pool {pool!r} of the corpus",
                where=str(corpus),
                remedy=f"its pools are {', '.join(sorted(set(pool_of.values())))}; "
                "name the suite that it was built with",
            )
        problems = held
    return first_of_each_kind(problems, limit)


def _inputs(
    problems: tuple[Problem, ...], catalogues: list[Path], world: str, encoder: str
) -> tuple[tuple[Problem, ...], dict[str, World], TitleEncoder]:
    from palio.judging.encoders import encoder_named
    from palio.world.catalogue import read_catalogues
    from palio.world.world import world_of_catalogue

    found, rejects = read_catalogues(catalogues)
    warn_of(rejects)
    worlds = {name: world_of_catalogue(held, world) for name, held in found.items()}
    return problems, worlds, encoder_named(encoder)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total)

        def show(progress: Progress) -> None:
            bars.update(task, completed=total - progress.total + progress.done)

        yield show


def _show(
    stages: list[StageResult],
    floor_results: list[FloorResult],
    rows: tuple[Comparison, ...],
    as_json: bool,
) -> None:
    from palio.evaluate.summary import floor_summary, stage_summary
    from palio.evaluate.tables import comparison_table, results_table

    if as_json:
        import msgspec

        plain = {
            "stages": [msgspec.to_builtins(stage_summary(stage)) for stage in stages],
            "floors": [msgspec.to_builtins(floor_summary(floor)) for floor in floor_results],
            "comparisons": msgspec.to_builtins(rows),
        }
        _print_json(plain)
        return
    _wide().print(results_table(stages, floor_results))
    if rows:
        _wide().print(comparison_table(rows))


def _wide() -> Console:
    """A console in which no interval is cut off, where standard output is a pipe of 80 columns."""
    from rich.console import Console

    return Console(width=max(Console().width, 120))


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
