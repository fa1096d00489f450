"""One self-contained HTML file of a run: no script, no request, all agent text escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from palio.evaluate.charts import (
    asr_chart,
    curve_chart,
    funnel_chart,
    paired_chart,
    pass_chart,
    standings_chart,
)
from palio.evaluate.figure import p_value, percent
from palio.evaluate.floors import FloorResult
from palio.evaluate.kept import models_in_words
from palio.evaluate.reading import example_view
from palio.evaluate.report_data import ReportData, StageResult
from palio.evaluate.results import OVERALL
from palio.evaluate.tables import clustered_in_words, floor_series
from palio.world.artefacts import replacing


def render_report(data: ReportData) -> str:
    """The report as one HTML document."""
    template = _environment().get_template("report.html.j2")
    return template.render(
        data=data,
        view=_view(data),
        charts=_charts(data),
        examples=[example_view(one, number) for number, one in enumerate(data.examples, 1)],
    )


def write_report(data: ReportData, path: Path) -> Path:
    """Render and write the report whole or not at all; gives the path back."""
    document = render_report(data).encode("utf-8", "backslashreplace")
    with replacing(path) as file:
        file.write(document)
    return path


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("palio.evaluate", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=percent,
        points=lambda value: f"{100 * value:.1f}",
        gap=_gap,
        pvalue=p_value,
        group=lambda name: "all" if name == OVERALL else name,
        decimal=lambda value, digits=2: "n/a" if value is None else f"{value:.{digits}f}",
    )
    environment.tests["digest"] = lambda value: bool(re.search(r"[0-9a-f]{24}", str(value)))
    return environment


def _gap(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _charts(data: ReportData) -> dict[str, Markup]:
    """Inline SVG by name, "" for what the run has no data for.

    `Markup` is right here and nowhere else: matplotlib and `figure.svg` escape all text.
    """
    series = [one for stage in data.stages if (one := stage.rate_series())]
    series += [floor_series(floor) for floor in data.floors]
    pairs = [pair for stage in data.stages if (pair := stage.pass_pair())]
    drawn = {
        "asr": asr_chart(series) if series else "",
        "paired": paired_chart(data.comparisons) if data.comparisons else "",
        "passk": pass_chart(pairs) if pairs else "",
        "standings": standings_chart(data.standings) if data.standings else "",
        "funnel": funnel_chart(data.funnel) if data.funnel else "",
        "curve": curve_chart(data.curve) if data.curve else "",
    }
    return {name: Markup(text) for name, text in drawn.items()}  # noqa: S704 - see above


def _view(data: ReportData) -> dict[str, Any]:
    sampled = [stage.sampled for stage in data.stages if stage.sampled]
    greedy = [(stage.name, stage.greedy.overall) for stage in data.stages if stage.greedy]
    rows = [_stage_row(stage) for stage in data.stages] + [_floor_row(one) for one in data.floors]
    best = [row for row in rows if not row["floor"] and row["rates"]]
    if best:
        best[-1]["best"] = True
    return {
        "intents": list(dict.fromkeys(intent for row in rows for intent in row["rates"])),
        "rows": rows,
        "k": max((result.samples for result in sampled), default=8),
        "temperature": sampled[0].temperature if sampled else None,
        "reworded": _reworded_rows(data),
        "behaviour": greedy,
        "clustered": clustered_in_words(data.stages),
        "ceilings": [floor.name for floor in data.floors if floor.sort == "ceiling"],
        "unscored": _unscored(data),
        "models": models_in_words(data.stages),
        "cards": _cards(data),
    }


def _reworded_rows(data: ReportData) -> list[dict[str, Any]]:
    if data.reworded is None:
        return []
    return [_stage_row(data.reworded), *(_floor_row(one) for one in data.reworded_floors)]


def _stage_row(stage: StageResult) -> dict[str, Any]:
    series, strict, pair = stage.rate_series(), stage.rate_series("strict"), stage.pass_pair()
    return {
        "name": stage.name,
        "note": " · ".join(part for part in (stage.origin, stage.note) if part),
        "floor": False,
        "best": False,
        "rates": series.rates if series else {},
        "strict": strict.rates[OVERALL] if strict else None,
        "one": pair.one if pair else None,
        "many": pair.many if pair else None,
    }


def _floor_row(floor: FloorResult) -> dict[str, Any]:
    return {
        "name": floor.name,
        "note": f"{floor.sort} · {floor.definition}",
        "floor": True,
        "best": False,
        "rates": floor_series(floor).rates,
        "strict": floor.rates[OVERALL].get("strict"),
        "one": None,
        "many": None,
    }


def _unscored(data: ReportData) -> str:
    """Which rollouts infrastructure broke, with the bound that counts them as failures."""
    parts = []
    asked = [(stage.name, stage) for stage in data.stages]
    if data.reworded is not None:
        asked.append((f"{data.reworded.name} in other words", data.reworded))
    for name, stage in asked:
        for result in (stage.greedy, stage.sampled):
            if result is None:
                continue
            group = result.overall
            worst = group.asr_worst.rate if group.asr_worst else None
            if group.pass_at_1_worst:
                worst = group.pass_at_1_worst.value
            why = ", ".join(
                f"{fault.rollouts} {fault.blame} {fault.code} {fault.name}"
                for fault in result.faults
            )
            parts.append(
                f"{name}, {result.mode}: {group.unscored_rollouts} of {group.rollouts}"
                + (f" ({why}; counted as failures: {percent(worst)})" if why else "")
                + (
                    f", and {group.timed_out} that the wall clock stopped are failures"
                    if group.timed_out
                    else ""
                )
            )
    return f"Unscored rollouts. {'; '.join(parts)}." if parts else ""


def _cards(data: ReportData) -> list[dict[str, str]]:
    cards = []
    for stage in _first_and_last(data.stages):
        series = stage.rate_series()
        if series is None or not series.rates[OVERALL].n:
            continue
        rate = series.rates[OVERALL]
        note = f"95 %: {100 * rate.low:.1f}\N{EN DASH}{100 * rate.high:.1f} · n {rate.n}"
        cards.append(_card(f"greedy ASR, {stage.name}", percent(rate.value), note))
    for rows in (data.against_base, data.comparisons):
        if rows and rows[0].n:
            gap = rows[0].difference
            note = f"95 %: {_gap(gap.low)} to {_gap(gap.high)} · n {rows[0].n}"
            cards.append(_card(f"points over {rows[0].b}, paired", _gap(gap.difference), note))
    return cards


def _first_and_last(stages: Sequence[StageResult]) -> Sequence[StageResult]:
    measured = [stage for stage in stages if stage.greedy]
    return measured if len(measured) < 3 else (measured[0], measured[-1])


def _card(label: str, value: str, note: str) -> dict[str, str]:
    return {"label": label, "value": value, "note": note}
