"""palio eval: roll a policy out on a suite, score floors on it, compare two evaluations."""

from __future__ import annotations

from pathlib import Path

import typer

from palio.cli.eval_contamination import contamination
from palio.cli.eval_diagnose import diagnose
from palio.cli.eval_inputs import (
    AS_JSON,
    CATALOGUES,
    CORPUS,
    ENCODER,
    LIMIT,
    POOL,
    SUITE,
    exam_of,
    problems_of,
    profile_named,
    rollouts_at,
)
from palio.cli.eval_output import print_json, show, tell_gaps, wide
from palio.cli.eval_run import run
from palio.cli.eval_steps import steps
from palio.cli.world import WORLD

app = typer.Typer(help="Evaluate policies: ASR, pass@k, floors, paired.", no_args_is_help=True)
app.command()(run)
app.command()(contamination)
app.command()(diagnose)
app.command()(steps)


@app.command()
def floors(
    suite: Path = SUITE,
    catalogue: list[Path] = CATALOGUES,
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of drawn answers and intervals."),
    tools: str = typer.Option("7", "--tools", help="Tools of the ceiling: 4, 7, or names."),
    world: str = WORLD,
    encoder: str = ENCODER,
    limit: int = LIMIT,
    corpus: Path | None = CORPUS,
    pool: str = POOL,
    as_json: bool = AS_JSON,
) -> None:
    """What no policy scores: first and random hit of the raw request; and the reader's ceiling."""
    from palio.evaluate.policy import harness_tools

    offered = harness_tools(tools)
    problems = problems_of(suite, limit, corpus, pool)
    exam = exam_of(problems, catalogue, world, encoder, corpus)
    show([], exam.below(seed, offered), (), offered, as_json=as_json)


@app.command()
def compare(
    a: Path = typer.Argument(..., help="Folder of an evaluation, or its …/greedy."),
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

    from palio.evaluate.loading import check_alike, load_result
    from palio.evaluate.pairing import compare_results
    from palio.evaluate.tables import comparison_table
    from palio.suites.clusters import leak_clusters

    chosen = profile_named(profile)
    problems = problems_of(suite, limit, corpus, pool)
    a, b = rollouts_at(a), rollouts_at(b)
    differ = check_alike(a, b)
    if differ:
        text = f"warning: the two were evaluated with other {', '.join(differ)}"
        typer.secho(text, fg="yellow", err=True)
    clusters = leak_clusters(problems).cluster_of
    first, second = (load_result(folder, problems, clusters) for folder in (a, b))
    tell_gaps((first, second))
    rows = compare_results(first, second, problems, profile=chosen, clusters=clusters)
    if as_json:
        print_json(msgspec.to_builtins(rows))
        return
    wide().print(comparison_table(rows))
