"""palio corpus salvage: sub-task traces become agentic rows that replay and hide nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from palio.corpus.gates import Drop
    from palio.corpus.salvage.moment import Rewriter
    from palio.corpus.salvage.run import SalvageReport
    from palio.records import Trajectory
    from palio.world.catalogue import Catalogue


def salvage(
    trajectories: list[Path] = typer.Argument(..., help="Trajectory files or folders."),
    catalogue: list[Path] = typer.Option(..., help="Catalogues in which the traces were made."),
    out: Path = typer.Option(..., help="Folder to write: rows, rejects, manifest."),
    suite: list[Path] = typer.Option([], help="Suites: only successes are rewritten then."),
    profile: str = typer.Option("oro", help="Profile of that success."),
    model_url: str = typer.Option("", help="OpenAI-compatible server of a rewriting model."),
    model: str = typer.Option("default", help="That model's name."),
    api_key: str = typer.Option("", envvar="PALIO_API_KEY", help="Its key."),
    world: str = WORLD,
    concurrency: int = typer.Option(
        1, "--concurrency", "--workers", min=1, help="Traces that a model rewrites at a time."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Rewrite sub-task traces as agentic ones; offline a templated narrator writes the thinking."""
    from palio.cli.corpus_screen import counter
    from palio.corpus.reading import TraceReader
    from palio.corpus.replay import Worlds
    from palio.corpus.salvage.run import salvage as salvage_all
    from palio.world.artefacts import file_digest
    from palio.world.catalogue import read_catalogues
    from palio.world.world import config_named

    found, rejects = read_catalogues(catalogue)
    warn_of(rejects)
    reader = TraceReader(trajectories)
    inputs = reader.digests() | {f"suite:{path.name}": file_digest(path) for path in suite}
    inputs |= {f"catalogue:{name}": each.digest for name, each in found.items()}
    with ExitStack() as held:
        progress = held.enter_context(counter("salvaging"))
        report = salvage_all(
            reader,
            Worlds(found, config_named(world)),
            _rewriter(held, model_url, model, api_key),
            out,
            accept=_successes(suite, list(found.values()), profile) if suite else None,
            workers=concurrency,
            inputs=inputs,
            unread=reader.rejects,
            progress=progress,
        )
    _show(report, out, as_json=as_json)


def _rewriter(held: ExitStack, model_url: str, model: str, api_key: str) -> Rewriter:
    from palio.broker.upstream import HttpUpstream
    from palio.corpus.salvage.model import ModelRewriter
    from palio.corpus.salvage.narrator import Narrator

    if not model_url:
        return Narrator()
    return ModelRewriter(held.enter_context(HttpUpstream(model_url, api_key)), model)


def _successes(
    suites: list[Path], catalogues: list[Catalogue], profile: str
) -> Callable[[Trajectory], Drop | None]:
    """Keeps traces that succeed under a profile: only those are worth a rewriter's time."""
    from palio.cli.corpus_judging import problems_of
    from palio.corpus.gates import Drop
    from palio.judging import default_encoder
    from palio.judging.outcome import OutcomeScorer
    from palio.records import PROFILES, ConfigError

    chosen = next((each for each in PROFILES if each == profile), None)
    if chosen is None:
        raise ConfigError(f"no profile is called {profile!r}", remedy=f"use {', '.join(PROFILES)}")
    problems = {problem.problem_id: problem for problem in problems_of(suites)}
    encoder = default_encoder()
    scorers = {each.catalogue_id: OutcomeScorer(each.products, encoder) for each in catalogues}

    def accept(trajectory: Trajectory) -> Drop | None:
        problem = problems.get(trajectory.problem_id)
        scorer = scorers.get(trajectory.catalogue)
        if problem is None:
            return Drop(reason="unknown_problem", detail=trajectory.problem_id)
        if scorer is None:
            return Drop(reason="catalogue_missing", detail=trajectory.catalogue)
        verdict = scorer.verdict(problem, trajectory, chosen)
        return None if verdict.success else Drop(reason="outcome_failed")

    return accept


def _show(report: SalvageReport, out: Path, *, as_json: bool) -> None:
    from palio.records import to_json

    if as_json:
        typer.echo(to_json(report).decode())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("agent", "traces", "salvaged", "rejected")
    for agent, count in report.agents.items():
        why = ", ".join(f"{reason} {number:,}" for reason, number in count.rejected.items())
        table.add_row(agent, f"{count.taken:,}", f"{count.salvaged:,}", why)
    why = ", ".join(f"{reason} {number:,}" for reason, number in report.rejected.items())
    table.add_row("all", f"{report.taken:,}", f"{report.salvaged:,}", why, style="bold")
    Console().print(table)
    typer.echo(f"wrote {out}; give it to `palio corpus build --trajectories` with salvaged = true")
