"""The result table as a terminal shows it; printing it is the command line's business."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from palio.evaluate.charts import RateSeries
from palio.evaluate.comparison import Comparison
from palio.evaluate.figure import p_value, percent
from palio.evaluate.floors import FloorResult
from palio.evaluate.report_data import StageResult
from palio.evaluate.results import OVERALL, Rate
from palio.records import Profile


def floor_series(floor: FloorResult, profile: Profile = "oro") -> RateSeries:
    """A floor's rates by intent, as the charts and tables take them."""
    rates = {intent: by_profile[profile] for intent, by_profile in floor.rates.items()}
    return RateSeries(name=floor.name, rates=rates, floor=True)


def results_table(
    stages: Sequence[StageResult], floors: Sequence[FloorResult] = (), *, title: str = "Results"
) -> Table:
    """Greedy ASR by intent, strict profile, sampled pass@1 and pass@k; each with interval and n."""
    series = [stage.rate_series() for stage in stages] + [floor_series(one) for one in floors]
    intents = list(dict.fromkeys(i for one in series if one for i in one.rates))
    ks = [stage.sampled.samples for stage in stages if stage.sampled]
    table = Table(title=title, caption=_CAPTION, title_style="bold", caption_justify="left")
    table.add_column("policy", no_wrap=True)
    for intent in intents:
        table.add_column("ASR all" if intent == OVERALL else f"ASR {intent}", justify="right")
    for heading in ("strict", "pass@1", f"pass@{max(ks, default=8)}"):
        table.add_column(heading, justify="right")
    for stage, one in zip(stages, series, strict=False):
        strict, pair = stage.rate_series("strict"), stage.pass_pair()
        table.add_row(
            Text(stage.name, style="bold"),
            *(cell(one.rates.get(intent) if one else None) for intent in intents),
            cell(strict.rates[OVERALL] if strict else None),
            cell(pair.one if pair else None),
            cell(pair.many if pair else None),
        )
    for floor in floors:
        rates = floor_series(floor).rates
        table.add_row(
            Text(f"{floor.name} ({floor.sort})", style="yellow"),
            *(cell(rates.get(intent)) for intent in intents),
            cell(floor.rates[OVERALL].get("strict")),
            cell(None),
            cell(None),
        )
    return table


_CAPTION = (
    "rate, 95 % interval, n problems. ASR: greedy, profile oro; pass@k: sampled, unbiased. "
    "strict: greedy ASR of all problems under the strict profile."
)


def comparison_table(rows: Sequence[Comparison]) -> Table:
    """Paired comparisons: rates, difference with interval, exact test, Holm-corrected p."""
    title = f"{rows[0].a} against {rows[0].b}, paired, {rows[0].profile}" if rows else "no pairs"
    table = Table(title=title, title_style="bold")
    table.add_column("problems")
    for heading in ("n", "a", "b", "difference", "only a / only b", "p", "p Holm"):
        table.add_column(heading, justify="right")
    for row in rows:
        gap = row.difference
        table.add_row(
            "all" if row.intent == OVERALL else row.intent,
            str(row.n),
            percent(row.rate_a.rate),
            percent(row.rate_b.rate),
            f"{100 * (gap.difference or 0):+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})",
            f"{row.table.only_a} / {row.table.only_b}",
            p_value(row.test.p_value),
            p_value(row.p_holm),
        )
    return table


def cell(rate: Rate | None) -> Text:
    """A rate with its interval and n; a dash where there is none."""
    if rate is None or rate.value is None:
        return Text("\N{EN DASH}", style="dim")
    text = Text(f"{100 * rate.value:.1f}", style="bold")
    interval = f"\n{100 * rate.low:.1f}\N{EN DASH}{100 * rate.high:.1f}\nn {rate.n}"
    return text.append(interval, style="not bold dim")
