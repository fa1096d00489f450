"""The picture of a measurement: whose decisions follow the data, and which judge can tell."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from palio.evaluate.counterfactual.measure import Counterfactual, JudgeCheck
from palio.evaluate.figure import INK, SERIES, clipped, save_picture
from palio.evaluate.statistics import Estimate, Proportion
from palio.records.verdict import QUALITY_BINS

ARMS = (
    ("treatment", "decisive datum", SERIES[0]),
    ("placebo", "placebo", SERIES[1]),
    ("copy", "new id", SERIES[3]),
)


def save_chart(found: Counterfactual, path: Path) -> None:
    """Write flip rates by agent (left) and by the first judge's bins (right) as .png or .svg.

    Raises:
        ConfigError: the file name ends in neither.
    """
    label = "Flip rates by agent and by the bin that judges gave"
    save_picture(path, partial(_draw, found), height=4.1, name="counterfactual", label=label)


def _draw(found: Counterfactual, figure: Figure) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    _agents(left, found)
    _judge(right, found.judges[0] if found.judges else None)


def _agents(axes: Axes, found: Counterfactual) -> None:
    names = list(found.agents)
    for place, name in enumerate(reversed(names)):
        flips = found.agents[name]
        for row, (arm, _, colour) in enumerate(ARMS):
            y = place + 0.24 - 0.24 * row
            _dot(axes, getattr(flips, arm), y, colour)
    for _, label, colour in ARMS:
        axes.plot([], [], "o", color=colour, markersize=5.5, label=label)
    labels = [f"{clipped(name, 16)} ({found.agents[name].runs})" for name in reversed(names)]
    axes.set_yticks(range(len(names)), labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("decisions that followed a changed datum · 95 %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3, handletextpad=0.2)


def _dot(axes: Axes, rate: Proportion, y: float, colour: str) -> None:
    if rate.rate is not None:
        axes.plot([rate.low, rate.high], [y, y], color=colour, linewidth=2)
        axes.plot(rate.rate, y, "o", color=colour, markersize=5.5)


def _judge(axes: Axes, check: JudgeCheck | None) -> None:
    """Flip rate of the runs that a judge put in each bin; a good judge's lines rise."""
    axes.grid(visible=False)
    axes.grid(visible=True, axis="y")
    axes.set_xticks(range(len(QUALITY_BINS)), [f"{value:g}" for value in QUALITY_BINS])
    axes.set_xlim(-0.4, len(QUALITY_BINS) - 0.4)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if check is None:
        return
    lines = (
        ("all flips", check.bins, check.gross.spearman, SERIES[0], -0.05),
        ("asked by the model", check.own, check.emitted.spearman, SERIES[2], 0.05),
    )
    for label, bins, correlation, colour, shift in lines:
        places = [(x + shift, rate) for x, rate in enumerate(bins.values()) if rate.n]
        rates = [rate.rate or 0.0 for _, rate in places]
        shown = f"{label}: {_shown(correlation)}"
        axes.plot([x for x, _ in places], rates, "-o", color=colour, lw=1, ms=6, label=shown)
        for x, rate in places:
            axes.plot([x, x], [rate.low, rate.high], color=colour, linewidth=2)
    for x, rate in enumerate(check.bins.values()):
        if rate.n:
            axes.text(x, 0.985, f"n={rate.n}", fontsize=7.5, color=INK, ha="center", va="top")
    axes.set_xlabel(f"quality by {clipped(check.judge.name, 20)} · decisions that followed · 95 %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _shown(value: Estimate) -> str:
    if value.value is None:
        return "rank correlation n/a"
    return f"Spearman {value.value:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"
