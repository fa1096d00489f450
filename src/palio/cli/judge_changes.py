"""What `palio judge rejudge` shows: the table of bins before and after, or the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from palio.judging.changes import Changes
    from palio.records import JudgeId, ReasoningVerdict

BINS = ("0.1", "0.3", "0.5", "0.7", "0.9", "unjudged")


def compared(
    known: Mapping[JudgeId, Mapping[str, ReasoningVerdict]], judge: JudgeId, against: str
) -> Changes | None:
    """The judge beside another: the one named, or the one whose verdict is the newest.

    Raises:
        ConfigError: no other judge of that name has judged here.
    """
    from palio.judging.changes import changes
    from palio.records import ConfigError

    others = [one for one in known if one != judge and against in ("", one.name)]
    if against and not others:
        names = ", ".join(sorted({one.name for one in known if one != judge})) or "none"
        raise ConfigError(
            f"no other judge called {against!r} has judged these runs", remedy=f"one of: {names}"
        )
    if not others or judge not in known:
        return None
    return changes(known[others[-1]], known[judge])


def show_changes(
    path: Path,
    judge: JudgeId,
    found: Changes | None,
    counts: Mapping[str, int],
    spending: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print what changed."""
    import msgspec

    if as_json:
        shown = {
            "verdicts": str(path),
            "judge": msgspec.to_builtins(judge),
            **counts,
            "spent": dict(spending) or None,
            "changes": msgspec.to_builtins(found),
        }
        typer.echo(json.dumps(shown, indent=2))
        return
    typer.echo(f"{counts['appended']} verdicts of {judge.name} appended to {path}, ", nl=False)
    typer.echo(f"{counts['known']} were there already")
    if spending:
        total = spending["total"]
        cost = "unknown" if total["cost"] is None else f"${total['cost']:.4f}"
        typer.echo(
            f"{total['requests']} requests, {total['retries']} retries, {total['cached']} kept "
            f"replies, {total['prompt_tokens']} + {total['completion_tokens']} tokens, cost {cost}"
        )
    if found is None:
        typer.echo("no other judge has judged these runs: nothing to compare with")
        return
    _table(found)


def _table(found: Changes) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    names = [name for name in BINS if any(name in key.split(" -> ") for key in found.transitions)]
    head = f"{found.before.name} \\ {found.after.name}"
    columns = [Column(head), *(Column(name, justify="right") for name in names)]
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for before in names:
        row = [found.transitions.get(f"{before} -> {after}", 0) for after in names]
        table.add_row(before, *("." if not count else str(count) for count in row))
    Console().print(table)
    means = [
        "-" if mean is None else f"{mean:.3f}" for mean in (found.mean_before, found.mean_after)
    ]
    typer.echo(
        f"{found.n} runs: {found.same} the same, {found.rose} rose, {found.fell} fell; "
        f"mean quality {means[0]} -> {means[1]}"
    )
