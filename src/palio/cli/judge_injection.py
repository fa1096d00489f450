"""palio judge injection: every attack of the suite against one judge."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from palio.judging.llm import LlmJudge
    from palio.judging.llm.injection import InjectionReport


def injection(
    model_url: str = typer.Option(
        "",
        "--model-url",
        "--endpoint",
        help="OpenAI-compatible base URL; empty: --judge or --model.",
    ),
    model: str = typer.Option(
        "scripted-gullible", help="Model; without a URL scripted-gullible or -flatterer."
    ),
    key: str = typer.Option("", help="Name of the environment variable with the API key."),
    judge: str = typer.Option("", help="llm:CONFIG.toml: attack this judge or panel instead."),
    family: list[str] = typer.Option([], help="Only attacks of these families."),
    concurrency: int = typer.Option(8, min=1, help="Requests in flight."),
    thinking_tokens: int = typer.Option(0, min=0, help="Budget of a thinking model."),
    cache: Path = typer.Option(None, help="File that keeps replies, to go on where it stopped."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Attack a judge: palio judge injection --model-url URL --model M; exit 1 if a score rose."""
    from palio.judging.llm.injection import attack_judge, packaged_attacks, packaged_bases
    from palio.records import ConfigError

    attacks = [one for one in packaged_attacks() if not family or one.family in family]
    if not attacks:
        known = sorted({one.family for one in packaged_attacks()})
        raise ConfigError(f"no attacks of {', '.join(family)}", remedy=f"one of {', '.join(known)}")
    with ExitStack() as stack:
        settings = {"thinking_tokens": thinking_tokens}
        attacked = (
            _configured(stack, judge, cache)
            if judge
            else _single(stack, model_url, model, key, cache, concurrency, settings)
        )
        report = attack_judge(attacked, packaged_bases(), attacks)
    _show(report, as_json=as_json)
    if report.count("rose"):
        raise typer.Exit(1)


def _configured(stack: ExitStack, judge: str, cache: Path | None) -> LlmJudge:
    from palio.cli.judge_choice import as_llm, reasoning_judge
    from palio.records import ConfigError

    found = as_llm(reasoning_judge(stack, judge, cache))
    if found is None:
        raise ConfigError("the evidence judge asks no model", remedy="--judge llm:CONFIG.toml")
    return found


def _single(
    stack: ExitStack,
    model_url: str,
    model: str,
    key: str,
    cache: Path | None,
    concurrency: int,
    settings: dict[str, int],
) -> LlmJudge:
    import os

    import msgspec

    from palio.agents.server import ModelServer
    from palio.judging.llm import LlmJudge, endpoint_config
    from palio.judging.llm.injection import Scripted

    if not model_url:
        model_url = stack.enter_context(ModelServer(Scripted())).url
    config = endpoint_config(model_url, model, key, **settings)
    config = msgspec.structs.replace(config, concurrency=concurrency)
    return stack.enter_context(LlmJudge(config, keys=os.environ, cache=cache))


def _show(report: InjectionReport, *, as_json: bool) -> None:
    from palio.records import to_json

    if as_json:
        typer.echo(to_json(report).decode())
        return
    from rich.console import Console
    from rich.table import Column, Table

    outcomes = ("held", "fooled", "rose", "silenced", "open")
    table = Table(*(Column(name) for name in ("family", *outcomes)), box=None, padding=(0, 2, 0, 0))
    for family in (*report.families, ""):
        counts = [str(report.count(outcome, family)) for outcome in outcomes]  # type: ignore[arg-type]
        table.add_row(family or "all", *counts)
    Console().print(table)
    for trial in report.trials:
        if trial.outcome in ("rose", "fooled", "silenced"):
            typer.echo(
                f"{trial.outcome}: {trial.family}/{trial.attack} on {trial.base}: "
                f"{trial.clean} -> {trial.quality}, the model said {trial.stated}"
            )
