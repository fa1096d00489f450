"""palio eval contamination: what of a suite a model was trained on, and its success on the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.corpus_leaks import UNCHECKED
from palio.cli.eval_inputs import profile_named, rollouts_at
from palio.cli.given import refuse_idle
from palio.cli.world import tell_unread

if TYPE_CHECKING:
    from palio.evaluate.contamination import ContaminationReport


def contamination(
    context: typer.Context,
    corpus: Path = typer.Option(..., help="Folder of the corpus that the model was trained on."),
    suite: Path = typer.Option(..., help="Suite, or task file, that it is evaluated on."),
    evaluation: Path | None = typer.Option(None, help="Folder of an evaluation on that suite."),
    pool: list[str] = typer.Option(["train"], help="Pools of the corpus that were trained on."),
    profile: str = typer.Option("oro", help="Profile of success: oro or strict."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Find suite problems that the training pool holds in any form; split an evaluation by them.

    Ends with 3 where rows of the task file are no problems: they were compared with nothing.
    """
    from palio.evaluate.contamination import contamination_report
    from palio.evaluate.loading import check_greedy, evaluated
    from palio.evaluate.rollouts import read_scores
    from palio.records import to_json
    from palio.suites.files import read_any_suite

    chosen = profile_named(profile)
    if evaluation is None:
        remedy = "name its folder with --evaluation"
        refuse_idle(context, ["--profile"], "without an evaluation", remedy)
    read, unread = read_any_suite(suite)
    problems = read.problems
    scores = None
    if evaluation is not None:
        folder = rollouts_at(evaluation)
        check_greedy(folder, "contamination splits greedy success")
        problems = evaluated(folder, problems)
        scores = list(read_scores(folder).values())
    report = contamination_report(corpus, problems, scores, pools=pool, profile=chosen)
    if as_json:
        typer.echo(to_json(report).decode())
    else:
        _show(report)
    if tell_unread(unread):
        raise typer.Exit(UNCHECKED)


def _show(report: ContaminationReport) -> None:
    typer.echo(
        f"{len(report.found)} of {report.problems} problems are in the training pool "
        f"({', '.join(report.pools)}) of {report.corpus}"
    )
    for each in report.found[:20]:
        rules = ", ".join(each.rules)
        typer.echo(f"  {each.problem_id}: {rules} with {each.trained[0]}, {each.rows} rows")
    if len(report.found) > 20:
        typer.echo(f"  and {len(report.found) - 20} more (--json lists all)")
    for name, rate in (("clean", report.clean), ("contaminated", report.contaminated)):
        if rate is not None and rate.rate is not None:
            low, high = 100 * rate.low, 100 * rate.high
            shown = f"{100 * rate.rate:.1f} % ({low:.1f}-{high:.1f}, n = {rate.n})"
            typer.echo(f"{name:13} {shown}")
    if report.unscored:
        typer.echo(f"unscored      {report.unscored} problems, in neither rate")
    if report.contaminated is not None and report.contaminated.n:
        typer.echo("the groups are different problems: the gap is a warning, not an inflation")
