"""Pictures of a run; every mark that stands for a rate shows its interval and its n."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from palio.corpus.funnel import Funnel, FunnelStep
from palio.evaluate.comparison import Comparison
from palio.evaluate.figure import (
    BAD,
    INK,
    LINE,
    MUTED,
    PAPER,
    SERIES,
    SOFT,
    clipped,
    drawing,
    percent,
    svg,
)
from palio.evaluate.results import OVERALL, Rate
from palio.records import Record


class RateSeries(Record, frozen=True):
    """One bar a group: a stage or a floor.

    Attributes:
        rates: group (intent) -> rate.
        floor: drawn as a hollow bar: it stands for no policy.
    """

    name: str
    rates: dict[str, Rate]
    floor: bool = False


class RaceRow(Record, frozen=True):
    """One agent's standing.

    Attributes:
        success: strict success rate with its interval and n.
        score: success rate x coefficient of the mean reasoning quality; None when nothing counted.
        score_low: lower end of the success interval times the coefficient.
        score_high: upper end.
        rank: None for agents that may not compete.
        worst_case: score if everything unscored or unjudged had failed.
        quality: mean reasoning quality in [0, 1], None when nothing was judged.
        unscored: runs that infrastructure broke or no judge could decide; outside `success.n`.
        note: e.g. "not eligible" for the oracle.
    """

    agent: str
    kind: str
    success: Rate
    score: float | None
    score_low: float = 0.0
    score_high: float = 1.0
    quality: float | None = None
    unscored: int = 0
    worst_case: float | None = None
    rank: int | None = None
    note: str = ""


class CurvePoint(Record, frozen=True):
    """One measurement of training.

    Attributes:
        stage: e.g. "base", "SFT".
        tokens: tokens trained on since the very start, all stages.
        loss: mean negative log-likelihood of the supervised tokens, nats a token.
        split: "train", or "development" for a held-back measurement.
    """

    stage: str
    step: int
    tokens: int
    loss: float
    split: str = "train"


class PassPair(Record, frozen=True):
    """Sampled pass@1 and pass@k of one stage."""

    name: str
    k: int
    one: Rate
    many: Rate


def asr_chart(series: Sequence[RateSeries]) -> str:
    """Grouped bars: success rate by intent for each stage and floor; whiskers are intervals."""
    groups = list(series[0].rates) if series else []
    width = 0.8 / max(1, len(series))
    with drawing(3.5) as (figure, axes):
        for place, one in enumerate(series):
            colour = _colour(series, place)
            for x, group in enumerate(groups):
                if group in one.rates:
                    at = x + (place - (len(series) - 1) / 2) * width
                    _bar(axes, at, width * 0.86, one.rates[group], colour, hollow=one.floor)
            axes.bar(
                [np.nan],
                [0],
                label=clipped(one.name),
                color=PAPER if one.floor else colour,
                edgecolor=colour,
                linewidth=1.2,
                alpha=1 if one.floor else 0.9,
            )
        axes.set_xticks(range(len(groups)), [_group_label(series, group) for group in groups])
        axes.tick_params(axis="x", labelcolor=INK)
        _percent_scale(axes, series)
        axes.set_ylabel("ASR, profile oro")
        if series:
            figure.legend(loc="outside upper left", ncols=min(5, len(series)))
        return svg(figure, name="asr", label="Success rate by intent with 95 % intervals")


def _bar(axes: Axes, x: float, width: float, rate: Rate, colour: str, *, hollow: bool) -> None:
    if rate.value is None:
        return
    axes.bar(
        x,
        rate.value,
        width,
        color="none" if hollow else colour,
        edgecolor=colour,
        linewidth=1.2,
        alpha=1 if hollow else 0.9,
    )
    axes.plot([x, x], [rate.low, rate.high], color=INK, linewidth=1.1, alpha=0.75)
    axes.annotate(
        f"{100 * rate.value:.0f}",
        (x, rate.high),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color=INK,
    )


def _group_label(series: Sequence[RateSeries], group: str) -> str:
    counts = sorted({one.rates[group].n for one in series if group in one.rates})
    shown = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}\N{EN DASH}{counts[-1]}"
    return f"{'all problems' if group == OVERALL else group}\nn = {shown}"


def _percent_scale(axes: Axes, series: Sequence[RateSeries]) -> None:
    highest = max((r.high for one in series for r in one.rates.values() if r.n), default=1.0)
    axes.set_ylim(0, min(1.08, highest + 0.09))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _colour(series: Sequence[RateSeries], place: int) -> str:
    """The last policy gets the accent, earlier ones the rest, floors the warm tones."""
    policies = [one.name for one in series if not one.floor]
    floors = [one.name for one in series if one.floor]
    name = series[place].name
    if series[place].floor:
        return (SERIES[2], SERIES[4], SERIES[5])[floors.index(name) % 3]
    if name == policies[-1]:
        return SERIES[0]
    return (SERIES[1], SERIES[3], SERIES[5])[policies.index(name) % 3]


def standings_chart(rows: Sequence[RaceRow]) -> str:
    """Race standings: bar = final score, dot and line = success rate with its interval."""
    rows = list(rows)
    with drawing(0.9 + 0.36 * max(1, len(rows)), grid="x") as (figure, axes):
        for y, row in enumerate(reversed(rows)):
            muted = row.rank is None
            score = row.score or 0.0
            colour = SOFT if muted else SERIES[0]
            axes.barh(y, score, 0.58, color=colour, alpha=0.9)
            if row.success.value is not None:
                low, high = row.success.low, row.success.high
                axes.plot([low, high], [y, y], color=INK, linewidth=1.3, clip_on=False)
                axes.plot(row.success.value, y, "o", color=INK, markersize=4.2, clip_on=False)
            shown = "unscored" if row.score is None else f"{row.score:.3f}"
            axes.text(1.02, y, f"{shown} · n = {row.success.n}", va="center", fontsize=8.5)
        names = [f"{clipped(row.agent)} ({clipped(row.kind, 12)})" for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xlim(0, 1.0)
        axes.set_ylim(-0.6, max(0.6, len(rows) - 0.4))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("bar: final score · dot and line: success rate, 95 % interval")
        return svg(figure, name="standings", label="Race standings with success intervals")


def funnel_chart(funnel: Funnel) -> str:
    """How many trajectories each corpus step keeps, with the reasons of the largest drops."""
    bars = [("came in", funnel.taken, "")]
    bars += [(step.name, step.kept, _reasons(step)) for step in funnel.steps]
    top = max(1, funnel.taken)
    with drawing(0.35 + 0.5 * len(bars), grid="x") as (figure, axes):
        for y, (_, rows, reasons) in enumerate(reversed(bars)):
            axes.barh(y, top, 0.46, color=LINE, alpha=0.55)
            axes.barh(y, rows, 0.46, color=SERIES[0], alpha=0.9)
            share = f"{rows:,} · {100 * rows / top:.0f} %"
            axes.text(top * 1.015, y, share, va="center", fontsize=8.5)
            axes.text(top * 0.004, y - 0.38, reasons, va="center", fontsize=7.6, color=MUTED)
        axes.set_yticks(range(len(bars)), [clipped(name, 26) for name, _, _ in reversed(bars)])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xticks([])
        axes.set_xlim(0, top)
        axes.set_ylim(-0.62, len(bars) - 0.6)
        axes.spines["bottom"].set_visible(False)
        return svg(figure, name="funnel", label="Corpus funnel: rows kept at each step")


def _reasons(step: FunnelStep, shown: int = 3) -> str:
    ranked = [(reason, count) for reason, count in step.rejected.items() if count]
    parts = [f"\N{MINUS SIGN}{count:,} {clipped(reason, 34)}" for reason, count in ranked[:shown]]
    rest = sum(count for _, count in ranked[shown:])
    return " · ".join([*parts, *([f"\N{MINUS SIGN}{rest:,} other reasons"] if rest else [])])


def curve_chart(points: Sequence[CurvePoint]) -> str:
    """Loss against tokens: faint = each measurement, line = smoothed, diamonds = development."""
    stages = list(dict.fromkeys(point.stage for point in points))
    with drawing(3.1) as (figure, axes):
        for place, stage in enumerate(stages):
            colour = SERIES[(1, 0, 3, 4, 5, 2)[place % 6]]
            for split in ("train", "development"):
                chosen = [p for p in points if p.stage == stage and p.split == split]
                if not chosen:
                    continue
                chosen.sort(key=lambda point: point.tokens)
                x = np.array([point.tokens / 1e6 for point in chosen])
                y = np.array([point.loss for point in chosen])
                if split == "development":
                    name = f"{clipped(stage)}, development"
                    axes.plot(x, y, "D", color=colour, markersize=4.5, mec=INK, mew=0.7, label=name)
                else:
                    axes.plot(x, y, color=colour, alpha=0.28, linewidth=0.9)
                    axes.plot(x, _smooth(y), color=colour, linewidth=2, label=clipped(stage))
            start = min(p.tokens for p in points if p.stage == stage) / 1e6
            if place:
                axes.axvline(start, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
        axes.set_xlabel("tokens seen (millions)")
        axes.set_ylabel("loss (nats a supervised token)")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        if points:
            figure.legend(loc="outside upper left", ncols=4)
        return svg(figure, name="curve", label="Training loss against tokens")


def _smooth(values: np.ndarray, share: float = 0.06) -> np.ndarray:
    """Centred running mean over `share` of the points; the ends use what is there."""
    half = max(1, int(len(values) * share / 2))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    smoothed: np.ndarray = (sums[high] - sums[low]) / (high - low)
    return smoothed


def pass_chart(pairs: Sequence[PassPair]) -> str:
    """Sampled pass@1 (dot) and pass@k (ring) of each stage; the gap is what sampling adds."""
    pairs = list(pairs)
    with drawing(0.95 + 0.62 * max(1, len(pairs)), grid="x") as (figure, axes):
        for y, pair in enumerate(reversed(pairs)):
            colour = SERIES[0] if y == 0 else SERIES[1]
            if pair.one.value is None or pair.many.value is None:
                continue
            axes.plot(
                [pair.one.value, pair.many.value], [y, y], color=colour, alpha=0.25, linewidth=7
            )
            marks = ((pair.one, 0.13, colour), (pair.many, -0.13, PAPER))
            for rate, lift, face in marks:
                if rate.value is None:
                    continue
                axes.plot([rate.low, rate.high], [y + lift] * 2, color=colour, linewidth=1.4)
                axes.plot(rate.value, y + lift, "o", mfc=face, mec=colour, mew=1.6, markersize=7)
            text = (
                f"pass@1 {percent(pair.one.value)} · pass@{pair.k} {percent(pair.many.value)}"
                f"\nn = {pair.one.n} problems"
            )
            axes.text(1.02, y, text, va="center", fontsize=8.5, linespacing=1.4)
        axes.set_yticks(range(len(pairs)), [clipped(pair.name) for pair in reversed(pairs)])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.55, max(0.55, len(pairs) - 0.45))
        axes.set_xlim(-0.01, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("filled: pass@1 · ring: pass@k · lines: 95 % intervals over clusters")
        return svg(figure, name="passk", label="Sampled pass@1 and pass@k with intervals")


def paired_chart(comparisons: Sequence[Comparison]) -> str:
    """Forest plot of paired differences in points; right of zero means that a is better."""
    rows = list(comparisons)
    with drawing(0.75 + 0.42 * max(1, len(rows)), grid="x") as (figure, axes):
        axes.axvline(0, color=MUTED, linewidth=1.1)
        for y, row in enumerate(reversed(rows)):
            gap = row.difference
            if gap.difference is None:
                continue
            colour = SERIES[0] if gap.low > 0 else BAD if gap.high < 0 else SERIES[1]
            axes.plot([100 * gap.low, 100 * gap.high], [y, y], color=colour, linewidth=2)
            axes.plot(100 * gap.difference, y, "o", color=colour, markersize=7)
            text = f"{_points(gap.difference)} · n = {row.n}"
            axes.text(
                1.02, y, text, va="center", fontsize=8.5, transform=axes.get_yaxis_transform()
            )
        names = ["all problems" if row.intent == OVERALL else row.intent for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.6, max(0.6, len(rows) - 0.4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _points(x / 100, 0)))
        title = f"{rows[0].a} minus {rows[0].b}" if rows else ""
        profile = f", profile {rows[0].profile}" if rows else ""
        axes.set_xlabel(f"{clipped(title, 60)}, points of ASR{profile}, 95 % interval (Tango)")
        return svg(figure, name="paired", label="Paired differences by intent with intervals")


def _points(gap: float, digits: int = 1) -> str:
    """A signed difference in percentage points with a real minus sign."""
    text = f"{100 * gap:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return "0" if float(f"{100 * gap:.{digits}f}") == 0 else text
