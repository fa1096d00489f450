"""palio judge calibrate: a reasoning judge against labelled trajectories."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from palio.cli.judge_choice import JUDGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from palio.evaluate.calibration import Calibration, Drift, LabelledRow
    from palio.evaluate.statistics import Estimate, Proportion
    from palio.records import ReasoningVerdict


def calibrate(
    labels: Path | None = typer.Argument(
        None, help="Labelled rows, .jsonl or .jsonl.zst; the set that comes with palio if omitted."
    ),
    judge: str = JUDGE,
    verdicts: Path | None = typer.Option(None, help="Stored verdicts to measure, not a judge."),
    against: Path | None = typer.Option(
        None, help="Stored verdicts of an older version: what changed is shown."
    ),
    cache: Path | None = typer.Option(None, help="File that keeps models' replies."),
    split: str = typer.Option("", help="Only rows of this split: development or heldout."),
    out: Path | None = typer.Option(
        None, help="Folder for calibration.json, the verdicts and the picture (.png, .svg)."
    ),
    misses: int = typer.Option(0, min=0, help="Show so many rows that the judge put elsewhere."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Agreement with labels: weighted kappa, accuracy, confusion, by population, and drift."""
    from rich.console import Console

    from palio.evaluate.calibration import calibrate as compare
    from palio.evaluate.calibration import drift

    rows = _rows(labels, split)
    given = _stored(verdicts) if verdicts else _judged(judge, rows, cache)
    found = compare(rows, given)
    moved = drift(rows, _stored(against), given) if against else None
    if out is not None:
        _write(out, found, moved, given)
    if as_json:
        typer.echo(json.dumps(_plain(found, moved), indent=2))
        return
    console = Console()
    _show(console, found, misses)
    if moved is not None:
        _show_drift(console, moved)
    if out is not None:
        console.print(f"written to {out}")


def _rows(labels: Path | None, split: str) -> tuple[LabelledRow, ...]:
    from palio.evaluate.calibration import read_labels, shipped_labels
    from palio.records import InputError

    rows = read_labels(labels) if labels else shipped_labels()
    chosen = tuple(row for row in rows if split in ("", row.split))
    if not chosen:
        splits = ", ".join(sorted({row.split for row in rows} - {""})) or "none"
        raise InputError(f"no row is in split {split!r}", remedy=f"the file has: {splits}")
    return chosen


def _judged(
    name: str, rows: Sequence[LabelledRow], cache: Path | None
) -> dict[str, ReasoningVerdict]:
    """Verdicts of the named judge on every row, with progress on stderr."""
    from rich.console import Console
    from rich.progress import track

    from palio.cli.judge_choice import reasoning_judge, verdicts_of
    from palio.evaluate.calibration import trajectories_of

    runs = trajectories_of(rows)
    with ExitStack() as stack:
        given = verdicts_of(reasoning_judge(stack, name, cache), runs)
        console = Console(stderr=True)
        shown = track(given, "rows", total=len(runs), console=console, transient=True)
        return {verdict.trajectory_id: verdict for verdict in shown}


def _stored(path: Path) -> dict[str, ReasoningVerdict]:
    """The last reasoning verdict on each trajectory; a file or a folder with verdicts.jsonl."""
    from palio.judging.store import VERDICTS, read_verdicts
    from palio.records import InputError, ReasoningVerdict

    file = path / VERDICTS if path.is_dir() else path
    if not file.is_file():
        raise InputError("there is no such file", where=str(file))
    found = (verdict for verdict in read_verdicts(file) if isinstance(verdict, ReasoningVerdict))
    return {verdict.trajectory_id: verdict for verdict in found}


def _plain(found: Calibration, moved: Drift | None) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {**plain, "drift": None if moved is None else msgspec.to_builtins(moved)}


def _write(
    out: Path, found: Calibration, moved: Drift | None, given: Mapping[str, ReasoningVerdict]
) -> None:
    from palio.evaluate.calibration import save_chart
    from palio.judging.store import VERDICTS, append_verdicts

    out.mkdir(parents=True, exist_ok=True)
    append_verdicts(out / VERDICTS, given.values())
    for suffix in ("png", "svg"):
        save_chart(found, out / f"calibration.{suffix}")
    text = json.dumps(_plain(found, moved), indent=2, ensure_ascii=False)
    (out / "calibration.json").write_text(text + "\n", encoding="utf-8")


def _show(console: Console, found: Calibration, misses: int) -> None:
    from rich.table import Table

    from palio.records.verdict import QUALITY_BINS

    who, overall = found.judge, found.overall
    console.print(
        f"{'judge' if who is None else f'{who.name} {who.version}'} on {overall.n} labelled rows"
        f" ({overall.unjudged} unjudged), labels {found.labels[:19]}"
    )
    for reason, count in found.unjudged.items():
        console.print(f"unjudged: {count} x {reason}", highlight=False)
    rates = Table("measure", "value", "95 %", "n", title="Agreement", title_justify="left")
    for name, value in (
        ("weighted kappa", overall.kappa),
        ("exact bin", overall.exact),
        ("within one bin", overall.within_one),
        ("balanced accuracy", overall.balanced),
        ("put below the label", found.refuted),
        ("put above the label", found.admitted),
    ):
        rates.add_row(name, *_cells(value))
    for name, pairs in found.pairs.items():
        rates.add_row(f"pairs both right, {name}", *_cells(pairs.both_right))
    console.print(rates)
    names = [f"{value:g}" for value in QUALITY_BINS]
    table = Table("label", *names, title="Confusion (columns: judge)", title_justify="left")
    for name, counts in zip(names, overall.confusion, strict=True):
        table.add_row(name, *[str(count) if count else "." for count in counts])
    console.print(table)
    groups = Table("group", "exact", "95 %", "n", title="Exact by group", title_justify="left")
    for kind, values in found.groups.items():
        for name, group in values.items():
            groups.add_row(f"{kind}: {name}", *_cells(group.exact))
    console.print(groups)
    _show_gates(console, found)
    for miss in found.misses[:misses]:
        console.print(
            f"{miss.row_id}: label {miss.label:g} ({miss.rationale}), judge {miss.given:g}",
            highlight=False,
        )


def _show_gates(console: Console, found: Calibration) -> None:
    from rich.table import Table

    gates = Table("gate", "false refutations", "false passes", title="Gates", title_justify="left")
    for gate in found.gates:
        gates.add_row(f"{gate.gate} {gate.question}", *map(_count, (gate.refuted, gate.admitted)))
    console.print(gates)


def _cells(value: Estimate | Proportion) -> tuple[str, str, str]:
    number = getattr(value, "value", getattr(value, "rate", None))
    shown = "n/a" if number is None else f"{number:.3f}"
    return shown, f"{value.low:.3f} to {value.high:.3f}", str(value.n)


def _count(value: Proportion) -> str:
    return f"{value.successes} of {value.n}"


def _show_drift(console: Console, moved: Drift) -> None:
    gap = moved.accuracy
    console.print(
        f"against the older verdicts, {moved.n} rows judged by both: {moved.changed.successes} "
        f"changed ({moved.raised} up, {moved.lowered} down), mean shift {moved.shift.value:+.3f} "
        f"[{moved.shift.low:+.3f}, {moved.shift.high:+.3f}]"
    )
    console.print(
        f"exact bin, newer minus older: {gap.difference:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}], "
        f"McNemar p = {moved.test.p_value:.4f} ({moved.test.discordant} discordant)"
    )
