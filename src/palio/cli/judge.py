"""palio judge: reasoning and richness verdicts on stored runs."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from palio.cli.judge_calibrate import calibrate
from palio.cli.judge_choice import JUDGE, REPLIES
from palio.cli.judge_counterfactual import counterfactual
from palio.cli.judge_injection import injection
from palio.cli.run_folder import RUN_FOLDER, stored, summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from palio.records import ReasoningVerdict, Trajectory

app = typer.Typer(help="Reasoning judges.", no_args_is_help=True)
app.command()(calibrate)
app.command()(injection)
app.command()(counterfactual)

CACHE = typer.Option(None, help="File that keeps models' replies; default: in the run folder.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.callback()
def main() -> None:
    """Judge the reasoning of stored runs."""


@app.command()
def run(
    folder: Path = RUN_FOLDER,
    judge: str = JUDGE,
    agentic: float = typer.Option(0.9, min=0, max=1, help="Richness from which a run is Axis A."),
    subtask: float = typer.Option(0.1, min=0, max=1, help="Richness up to which it is Axis B."),
    cache: Path = CACHE,
    as_json: bool = AS_JSON,
) -> None:
    """Judge reasoning and richness of stored runs; old verdicts are kept."""
    from palio.cli.judge_choice import reasoning_judge, spent, verdicts_of
    from palio.judging import richness_verdict
    from palio.judging.store import VERDICTS, append_verdicts
    from palio.records import Verdict

    where, trajectories = stored(folder)
    bins: Counter[str] = Counter()
    axes: Counter[str] = Counter()
    with ExitStack() as stack:
        chosen = reasoning_judge(stack, judge, cache or where / REPLIES)
        runs: deque[Trajectory] = deque()

        def verdicts() -> Iterator[Verdict]:
            for reasoning in verdicts_of(chosen, _kept(trajectories, runs)):
                richness = richness_verdict(runs.popleft(), agentic, subtask)
                bins[_bin(reasoning)] += 1
                axes[richness.axis] += 1
                yield reasoning
                yield richness

        appended = append_verdicts(where / VERDICTS, verdicts())
        spending = spent(chosen)
    counts = {
        "trajectories": bins.total(),
        "appended": appended,
        "quality": dict(sorted(bins.items())),
        "axis": dict(sorted(axes.items())),
        **({"spent": spending} if spending else {}),
    }
    summarise(where / VERDICTS, counts, as_json=as_json)


@app.command()
def rejudge(
    folder: Path = RUN_FOLDER,
    judge: str = JUDGE,
    against: str = typer.Option("", help="Compare with the judge of this name; empty: the last."),
    cache: Path = CACHE,
    as_json: bool = AS_JSON,
) -> None:
    """Judge stored runs under a new judge, run nothing, and show whose bin moved.

    Runs that this judge has judged already are not judged again, so a killed call goes on where it
    was. Old verdicts stay.
    """
    from palio.cli.judge_changes import compared, show_changes
    from palio.cli.judge_choice import reasoning_judge, spent, verdicts_of
    from palio.judging.store import VERDICTS, append_verdicts, reasoning_by_judge

    where, trajectories = stored(folder)
    path = where / VERDICTS
    known = reasoning_by_judge(path)
    with ExitStack() as stack:
        chosen = reasoning_judge(stack, judge, cache or where / REPLIES)
        done = {
            name
            for name, verdict in known.get(chosen.judge_id, {}).items()
            if verdict.status == "judged"
        }
        waiting = (run for run in trajectories if run.trajectory_id not in done)
        appended = append_verdicts(path, verdicts_of(chosen, waiting))
        spending = spent(chosen)
    found = compared(reasoning_by_judge(path), chosen.judge_id, against)
    counts = {"appended": appended, "known": len(done)}
    show_changes(path, chosen.judge_id, found, counts, spending, as_json=as_json)


def _kept(trajectories: Iterator[Trajectory], runs: deque[Trajectory]) -> Iterator[Trajectory]:
    """The same stream; each run also waits in `runs` for its verdict."""
    for trajectory in trajectories:
        runs.append(trajectory)
        yield trajectory


def _bin(verdict: ReasoningVerdict) -> str:
    return "unjudged" if verdict.quality is None else f"{verdict.quality:g}"
