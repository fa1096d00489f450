"""The result tables as a terminal shows them; printing them is the command line's business."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from palio.evaluate.charts import RateSeries
from palio.evaluate.comparison import Comparison
from palio.evaluate.figure import p_value, percent
from palio.evaluate.floors import FloorResult
from palio.evaluate.report_data import StageResult
from palio.evaluate.results import OVERALL, GroupResult, Rate, rate_of
from palio.records import Profile


def floor_series(floor: FloorResult, profile: Profile = "oro") -> RateSeries:
    """A floor's rates by intent, as the charts and tables take them."""
    rates = {intent: by_profile[profile] for intent, by_profile in floor.rates.items()}
    return RateSeries(name=floor.name, rates=rates, floor=True)


def results_table(
    stages: Sequence[StageResult], floors: Sequence[FloorResult] = (), *, title: str = "Results"
) -> Table:
    """Greedy ASR by intent, strict profile, CAR, sampled pass@1 and pass@k, unscored rollouts.

    Each rate with interval and n. Columns of samples are left out where nothing was sampled. At 120
    columns, with three intents and samples, a name of up to 22 letters stands in one line.
    """
    series = [stage.rate_series() for stage in stages] + [floor_series(one) for one in floors]
    intents = list(dict.fromkeys(i for one in series if one for i in one.rates))
    ks = [stage.sampled.samples for stage in stages if stage.sampled]
    table = _table(title, _CAPTION)
    table.add_column("policy", overflow="fold")
    headings = ["ASR\nall" if intent == OVERALL else f"ASR\n{intent}" for intent in intents]
    headings += ["ASR\nstrict", "CAR\nall", *(["pass@1", f"pass@{max(ks)}"] if ks else [])]
    for heading in (*headings, "un-\nscored"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage, one in zip(stages, series, strict=False):
        strict, pair = stage.rate_series("strict"), stage.pass_pair()
        groups = _runs(stage, OVERALL)
        table.add_row(
            Text(f"{stage.name} (floor)", style="yellow")
            if stage.floor
            else Text(stage.name, style="bold"),
            *(cell(one.rates.get(intent) if one else None) for intent in intents),
            cell(strict.rates[OVERALL] if strict else None),
            cell(rate_of(groups[0].car) if groups else None),
            *([cell(pair.one if pair else None), cell(pair.many if pair else None)] if ks else []),
            _unscored(groups),
        )
    for floor in floors:
        rates = floor_series(floor).rates
        table.add_row(
            Text(f"{floor.name} ({floor.sort})", style="yellow"),
            *(cell(rates.get(intent)) for intent in intents),
            cell(floor.rates[OVERALL].get("strict")),
            cell(rate_of(floor.car[OVERALL])),
            *([cell(None), cell(None)] if ks else []),
            cell(None),
        )
    return table


_CAPTION = (
    "rate, 95 % interval, n problems. ASR: greedy, profile oro; strict: all problems under the "
    "strict profile;\nCAR: mean rule score of the greedy rollouts; pass@k: sampled, unbiased; "
    "unscored: rollouts that\ninfrastructure broke, of all, in no rate."
)


def clustered_in_words(stages: Sequence[StageResult]) -> str:
    """Greedy ASR of all problems with leak clusters as the units; "" where there is none."""
    parts = []
    for stage in stages:
        one = stage.greedy.overall.asr_clustered.get("oro") if stage.greedy else None
        if one is not None and one.n:
            interval = f"{100 * one.low:.1f}\N{EN DASH}{100 * one.high:.1f}"
            parts.append(f"{stage.name} {interval} ({one.clusters} clusters of {one.n} problems)")
    return f"ASR over leak clusters, 95 %: {'; '.join(parts)}." if parts else ""


LEVELS = ("easy", "medium", "hard")
"""Difficulties in their order; a suite that names others has them after these, by name."""


def groups_table(stage: StageResult) -> Table:
    """One policy by intent and by difficulty: ASR, strict, CAR, pass@1, pass@k, unscored.

    The caption has the interval of the whole with leak clusters as the units.
    """
    results = [result for result in (stage.greedy, stage.sampled) if result]
    intents = [name for result in results for name in result.intents if name != OVERALL]
    levels = [name for result in results for name in result.difficulties]
    k = str(stage.sampled.samples) if stage.sampled else ""
    table = _table(f"{stage.name} by intent and difficulty", clustered_in_words([stage]))
    table.add_column("")
    for heading in (
        "ASR",
        "ASR strict",
        "CAR",
        *(("pass@1", f"pass@{k}") if k else ()),
        "unscored",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    levels.sort(key=lambda level: (*(level != known for known in LEVELS), level))
    sections = [list(dict.fromkeys(intents)), list(dict.fromkeys(levels))]
    for names in sections:
        for name in names:
            groups = _runs(stage, name)
            asr, pass_at = groups[0].asr, groups[-1].pass_at.get("oro", {})
            rates = [rate_of(asr[p]) if p in asr else None for p in ("oro", "strict")]
            rates.append(rate_of(groups[0].car))
            if k:
                rates += [rate_of(pass_at[one]) if one in pass_at else None for one in ("1", k)]
            table.add_row(Text(name), *(short_cell(rate) for rate in rates), _unscored(groups))
        table.add_section()
    return table


def behaviour_table(stages: Sequence[StageResult]) -> Table:
    """How each policy went about all problems: valid turns, refused calls, invented ids, length."""
    caption = (
        "means over problems; valid turns: those that make a call and whose calls a tool takes; "
        "refused calls:\na tool answered with an error; inventing: rollouts that named an id which "
        "nothing had shown them (ids in all)."
    )
    table = _table("Behaviour", caption)
    table.add_column("policy", overflow="fold")
    headings = (
        "valid turns",
        "refused calls",
        "inventing",
        "turns\na rollout",
        "tokens\na rollout",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in stages:
        if groups := _runs(stage, OVERALL):
            one = groups[0]
            inventing = cell(rate_of(one.inventing)).append(f"\n{one.invented_ids:,} ids", "dim")
            table.add_row(
                Text(stage.name, style="bold"),
                cell(rate_of(one.valid_turns)),
                cell(rate_of(one.refused_calls)),
                inventing,
                *(
                    "n/a" if n is None else f"{n:,.1f}"
                    for n in (one.turns.mean, one.completion_tokens.mean)
                ),
            )
    return table


def _runs(stage: StageResult, group: str) -> list[GroupResult]:
    """What a policy's runs say of a group, greedy before sampled."""
    results = [result for result in (stage.greedy, stage.sampled) if result]
    found = [{**result.difficulties, **result.intents}.get(group) for result in results]
    return [one for one in found if one is not None]


def _unscored(groups: Sequence[GroupResult]) -> Text:
    broken = sum(one.unscored_rollouts for one in groups)
    text = Text(str(broken), style="bold red" if broken else "")
    return text.append(f"\nof {sum(one.rollouts for one in groups)}", style="not bold dim")


def _table(title: str, caption: str = "") -> Table:
    """With one space between columns: lines and padding would take a fourth of 120 columns."""
    return Table(
        title=Text(title),
        caption=Text(caption) if caption else None,
        title_style="bold",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )


def comparison_table(rows: Sequence[Comparison]) -> Table:
    """Paired comparisons: rates, difference with both intervals, exact test, Holm-corrected p."""
    title = f"{rows[0].a} against {rows[0].b}, paired, {rows[0].profile}" if rows else "no pairs"
    caption = Text(_PAIRED) if rows else None
    if caption is not None and (models := _models(rows[0])) is not None:
        caption.append("\n").append(models)
    table = Table(title=Text(title), title_style="bold", caption=caption, caption_justify="left")
    table.add_column("problems")
    for heading in ("n", "a", "b", "difference", "only a / only b", "p", "p Holm"):
        table.add_column(heading, justify="right")
    for row in rows:
        gap = row.difference
        table.add_row(
            Text("all" if row.intent == OVERALL else row.intent),
            str(row.n),
            percent(row.rate_a.rate),
            percent(row.rate_b.rate),
            f"{100 * (gap.difference or 0):+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})\n"
            f"clustered ({100 * row.clustered.low:+.1f} to {100 * row.clustered.high:+.1f})",
            f"{row.table.only_a} / {row.table.only_b}",
            p_value(row.test.p_value),
            p_value(row.p_holm),
        )
    return table


_PAIRED = (
    "n: problems that both were scored on; points, Tango's 95 % interval, below it the one over "
    "leak clusters; p: McNemar, exact; Holm over the intents"
)


def _models(row: Comparison) -> Text | None:
    """Which models were compared; None where neither has weights that are known."""
    sides = (("a", row.a, row.model_a), ("b", row.b, row.model_b))
    if not any(pin for _, _, pin in sides):
        return None
    unknown = "no weights: a floor, a program, or not kept"
    lines = (f"{side} = {name}: {pin.in_words() if pin else unknown}" for side, name, pin in sides)
    return Text("\n".join(lines))


def cell(rate: Rate | None) -> Text:
    """A rate with its interval and n, in three lines; a dash where there is none."""
    if rate is None or rate.value is None:
        return Text("\N{EN DASH}", style="dim")
    text = Text(f"{100 * rate.value:.1f}", style="bold")
    interval = f"\n{100 * rate.low:.1f}\N{EN DASH}{100 * rate.high:.1f}\nn {rate.n}"
    return text.append(interval, style="not bold dim")


def short_cell(rate: Rate | None) -> Text:
    """The same in two lines."""
    if rate is None or rate.value is None:
        return Text("\N{EN DASH}", style="dim")
    text = Text(f"{100 * rate.value:.1f}", style="bold")
    interval = f" n {rate.n}\n{100 * rate.low:.1f}\N{EN DASH}{100 * rate.high:.1f}"
    return text.append(interval, style="not bold dim")
