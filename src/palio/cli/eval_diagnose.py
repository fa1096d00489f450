"""palio eval diagnose: the first call of each rollout that its teacher would not have made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.corpus_screen import counter
from palio.cli.eval_inputs import API_KEY, check_key, profile_named, rollouts_at
from palio.cli.world import WORLD, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from palio.evaluate.diagnosis import Diagnosis
    from palio.world.catalogue import Catalogue
    from palio.world.tools import Toolbox


def diagnose(
    context: typer.Context,
    evaluation: Path = typer.Argument(..., help="Folder of an evaluation: greedy or sampled."),
    suite: Path = typer.Option(..., help="Its suite."),
    catalogue: list[Path] = typer.Option(..., help="Catalogues of the suite."),
    teacher: str = typer.Option("scripted-careful", help="Name of the teacher's model."),
    model_url: str = typer.Option(
        "", "--model-url", "--base-url", help="OpenAI-compatible endpoint of another teacher."
    ),
    api_key: str = API_KEY,
    profile: str = typer.Option("oro", help="Profile of success: oro or strict."),
    world: str = WORLD,
    out: Path | None = typer.Option(None, help="File for every departure, one JSON line each."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Ask a teacher, on the policy's own history, where the policy first went another way."""
    from contextlib import ExitStack

    from palio.agents.scripted import ScriptedUpstream
    from palio.broker.upstream import HttpUpstream, Upstream
    from palio.evaluate.diagnosis import check_suite_of
    from palio.evaluate.diagnosis import diagnose as diagnose_all
    from palio.evaluate.rollouts import read_identity, read_rollouts
    from palio.records import to_json
    from palio.suites.files import read_suite
    from palio.world.artefacts import write_lines
    from palio.world.catalogue import read_catalogues

    success_of = profile_named(profile)
    check_key(context, model_url)
    _check_file(out)
    evaluation = rollouts_at(evaluation)
    identity = read_identity(evaluation)
    kinds = {problem.problem_id: problem.kind for problem in read_suite(suite).problems}
    check_suite_of(evaluation, kinds)
    found, rejects = read_catalogues(catalogue)
    warn_of(rejects)
    tools_of = _toolboxes(found, world, evaluation)

    with ExitStack() as held:
        asked: Upstream = ScriptedUpstream()
        if model_url:
            asked = held.enter_context(HttpUpstream(model_url, api_key))
        told, departures = diagnose_all(
            read_rollouts(evaluation),
            kinds,
            asked,
            teacher,
            lambda trajectory: tools_of(trajectory.catalogue),
            policy=str(identity.get("policy", "")),
            profile=success_of,
            progress=held.enter_context(counter("asking the teacher")),
        )
    if out:
        write_lines(out, (to_json(each) + b"\n" for each in departures))
    if as_json:
        typer.echo(to_json(told).decode())
    else:
        _show(told)


def _check_file(out: Path | None) -> None:
    """Told before the teacher is asked, not when its answers are to be written."""
    from palio.records import ConfigError

    if out is not None and out.is_dir():
        raise ConfigError("--out names a folder", where=str(out), remedy="name a file in it")


def _toolboxes(
    found: Mapping[str, Catalogue], world: str, evaluation: Path
) -> Callable[[str], Toolbox]:
    """Catalogue id -> its tools, in the world that the evaluation was made in."""
    from functools import cache

    from palio.evaluate.rollouts import read_identity
    from palio.records import InputError
    from palio.world.tools import Toolbox
    from palio.world.world import world_of_catalogue

    worlds = read_identity(evaluation)["worlds"]

    @cache
    def tools_of(name: str) -> Toolbox:
        if name not in found:
            raise InputError(f"no catalogue {name!r}", remedy="name it with --catalogue")
        made = world_of_catalogue(found[name], world)
        if made.digest != worlds.get(name):
            raise InputError(
                f"the evaluation was made in another world than catalogue {name!r} gives",
                where=str(evaluation),
                remedy="name the catalogue and the --world that it was made with",
            )
        return Toolbox(made)

    return tools_of


def _show(told: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{told.policy} against {told.teacher}: {told.failed} of {told.n} rollouts failed"
    table = Table("first departure", "failed", "by kind", "succeeded", "success", title=Text(title))
    for row in told.departures:
        kinds = ", ".join(f"{kind or '?'} {count}" for kind, count in row.by_kind.items())
        rate = row.success
        shown = f"{100 * (rate.rate or 0):.0f} % ({100 * rate.low:.0f}-{100 * rate.high:.0f})"
        table.add_row(Text(row.kind), str(row.failed), Text(kinds), str(row.succeeded), shown)
    Console(width=max(Console().width, 110)).print(table)
