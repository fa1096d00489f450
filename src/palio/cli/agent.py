"""palio agent: list the bundled agents, start a new one, try one on a few problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from palio.agents.spec import AgentSpec

_LISTED = ("name", "kind", "model", "eligible", "summary")
_TRIED = ("kind", "oro", "quality", "richness", "calls", "inferences", "ending", "seconds", "fault")

DRIVER_HELP = (
    "What encloses agents: auto, bwrap, oci, docker; for agents that you trust, never ranked: "
    "unsafe-subprocess, inline."
)
FORCE = typer.Option(False, "--force", help="Overwrite an existing file.")
app = typer.Typer(help="Agents: list, start from a template, try out.", no_args_is_help=True)


@app.command("list")
def list_agents(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the agents that ship with palio."""
    from palio.agents.registry import TABLE, bundled_agents

    about = {row.name: row.summary for row in TABLE}
    rows = [
        {
            "name": spec.name,
            "kind": spec.ref.kind,
            "model": spec.model,
            "eligible": spec.eligible,
            "digest": spec.ref.digest,
            "summary": about.get(spec.name, "host-side policy that knows the answers"),
        }
        for spec in bundled_agents()
    ]
    _show(rows, _LISTED, as_json)


@app.command()
def new(
    path: Path = typer.Argument(..., help="File to write."),
    force: bool = FORCE,
) -> None:
    """Write a small working agent to start from."""
    from palio.agents.template import write_template

    write_template(path, force=force)
    typer.echo(f"wrote {path}; try it: palio agent test {path}")


@app.command("from-checkpoint")
def from_checkpoint(
    checkpoint: Path = typer.Argument(help="Checkpoint, stage or run folder; or: bundled."),
    out: Path = typer.Option(Path("trained.py"), help="Agent file to write."),
    force: bool = FORCE,
) -> None:
    """Make an agent whose model is a trained checkpoint; it races like any agent file."""
    from palio.train.racer import write_racer

    racer = write_racer(checkpoint, out, force=force)
    typer.echo(f"wrote {out}; its model is {racer.model}, {racer.checkpoint}")
    typer.echo(f"race it: palio race --agents careful,{out} --suite S --catalogue C --out RUN")


@app.command("test")
def try_out(
    agent: str = typer.Argument(..., help="Agent file, or the name of a bundled agent."),
    problems: int = typer.Option(6, min=1, max=60, help="Problems to try, of all three kinds."),
    seed: int = typer.Option(0, help="Seed of the small synthetic world and of the runs."),
    model: str = typer.Option(
        "", help="Model of the agent's calls; a file's: its checkpoint, or scripted-careful."
    ),
    model_url: str = typer.Option("", help="OpenAI-compatible base URL; empty: scripted models."),
    api_key: str = typer.Option("", envvar="PALIO_API_KEY", help="Key of the model server."),
    seconds: float = typer.Option(30.0, min=1, help="Time-out a problem."),
    driver: str = typer.Option("auto", help=DRIVER_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Run an agent as a race would: own process, broker, scorer and judge."""
    from functools import partial

    from rich.console import Console

    from palio.rollout.trial import try_agent
    from palio.train.racer import with_checkpoints

    spec = _spec(agent, model, scripted=not model_url)
    files = [Path(agent)] if agent.endswith(".py") and not model else []
    with Console(stderr=True).status(f"running {spec.name}"):
        rows = try_agent(
            spec,
            problems=problems,
            seed=seed,
            model_url=model_url,
            api_key=api_key,
            seconds=seconds,
            driver=driver,
            answering=partial(with_checkpoints, files=files),
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    told = [
        {**row, "oro": row["success"]["oro"], "seconds": f"{row['seconds']:.2f}"} for row in rows
    ]
    _show(told, _TRIED, False)
    won = sum(row["success"]["oro"] for row in rows)
    typer.echo(f"{spec.name}: {won} of {len(rows)} solved (profile oro)")


@app.command("check")
def check_file(
    path: Path = typer.Argument(..., help="Agent file; nothing of it is run."),
    against: list[Path] = typer.Option([], help="Files that it must not be a copy of."),
    suite: list[Path] = typer.Option([], help="Public suites whose answers it must not hold."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Look for what an arena would refuse; exit code 1 if there is an error."""
    from palio.agents.template import starting_points
    from palio.arena.admission import AdmissionConfig, check, rejected
    from palio.records import to_json
    from palio.suites import read_suite

    problems = [problem for file in suite for problem in read_suite(file).problems]
    config = AdmissionConfig(
        known_ids=frozenset(each.product_id for p in problems for each in p.rewards),
        known_texts=frozenset(problem.query for problem in problems),
    )
    others = {str(file): file.read_bytes() for file in against}
    findings = check(path, config, others=others, common=starting_points())
    if as_json:
        typer.echo(to_json(findings).decode())
    elif findings:
        columns = ("line", "severity", "rule", "message")
        rows = [{name: getattr(each, name) for name in columns} for each in findings]
        _show(rows, columns, False)
    else:
        typer.echo(f"{path}: nothing to object to")
    if rejected(findings):
        raise typer.Exit(1)


def _spec(agent: str, model: str, *, scripted: bool) -> AgentSpec:
    import msgspec

    from palio.agents.registry import find_agent
    from palio.agents.scripted import check_models
    from palio.agents.spec import agent_from_file
    from palio.records import ConfigError
    from palio.train.racer import racer_spec

    if scripted and model:
        check_models([model])
    if Path(agent).suffix == ".py" or Path(agent).exists():
        own = racer_spec(Path(agent)) if not model else None
        if own is not None and not scripted:
            raise ConfigError(
                f"the agent's model is its checkpoint {own.model!r}: --model-url would be asked "
                "nothing",
                where=agent,
                remedy="leave --model-url out, or name a model of that server with --model",
            )
        if own is not None:
            return own
        if not model and not scripted:
            raise ConfigError(
                "an agent file asks for no model by itself, and --model-url has no default one",
                where=agent,
                remedy="name it with --model",
            )
        return agent_from_file(agent, model=model or "scripted-careful")
    found = find_agent(agent)
    return msgspec.structs.replace(found, model=model) if model else found


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console(width=max(Console().width, 100)).print(table)
