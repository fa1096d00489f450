"""The picture of a calibration: where a judge puts each label, and how right it is for whom."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from palio.evaluate.calibration.report import Calibration
from palio.evaluate.figure import BAD, INK, MUTED, PAPER, SERIES, clipped, percent, save_picture
from palio.records.verdict import QUALITY_BINS


def save_chart(found: Calibration, path: Path) -> None:
    """Write confusion by bin (left) and accuracy with intervals (right) as .png or .svg.

    Raises:
        ConfigError: the file name ends in neither.
    """
    label = "Judge against labels: confusion, accuracy"
    save_picture(path, partial(_draw, found), height=4.1, name="calibration", label=label)


def _draw(found: Calibration, figure: Figure) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _confusion(left, found)
    _rates(right, found)
    judge = found.judge
    name = "judge" if judge is None else f"{judge.name} {judge.version}"
    kappa = found.overall.kappa
    shown = (
        "n/a" if kappa.value is None else f"{kappa.value:.2f} [{kappa.low:.2f}, {kappa.high:.2f}]"
    )
    figure.suptitle(
        f"{clipped(name, 40)} · n = {found.overall.n} · weighted kappa {shown}",
        fontsize=9.5,
        color=INK,
        x=0.01,
        ha="left",
    )


def _confusion(axes: Axes, found: Calibration) -> None:
    """Counts; a cell's shade is its share of the label's rows, the frame marks agreement."""
    counts = found.overall.confusion
    shades = [[cell / max(1, sum(row)) for cell in row] for row in counts]
    scale = LinearSegmentedColormap.from_list("shade", [PAPER, SERIES[0]])
    axes.grid(visible=False)
    axes.imshow(shades, cmap=scale, vmin=0, vmax=1, aspect="equal")
    for y, row in enumerate(counts):
        for x, cell in enumerate(row):
            colour = PAPER if shades[y][x] > 0.55 else INK if cell else MUTED
            axes.text(x, y, str(cell), ha="center", va="center", color=colour, fontsize=9.5)
        axes.add_patch(mpl.patches.Rectangle((y - 0.5, y - 0.5), 1, 1, fill=False, ec=INK, lw=0.9))
    names = [f"{value:g}" for value in QUALITY_BINS]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("judge")
    axes.set_ylabel("label")
    axes.spines["bottom"].set_visible(False)


def _rates(axes: Axes, found: Calibration) -> None:
    """Dots with 95 % intervals over clusters: exact agreement overall, by population, on pairs."""
    rates = [("all rows", found.overall.exact, SERIES[0])]
    rates += [(name, group.exact, SERIES[1]) for name, group in found.groups["population"].items()]
    if "all" in found.pairs:
        rates.append(("pairs, both right", found.pairs["all"].both_right, SERIES[3]))
    for y, (_, rate, colour) in enumerate(reversed(rates)):
        axes.plot([rate.low, rate.high], [y, y], color=colour, linewidth=2)
        if rate.value is not None:
            axes.plot(rate.value, y, "o", color=colour, markersize=6.5)
        text = f"{percent(rate.value)} · n = {rate.n}"
        axes.text(1.02, y, text, va="center", fontsize=8.5, transform=axes.get_yaxis_transform())
    axes.axvline(0.2, color=BAD, linewidth=1, linestyle=(0, (2, 3)))
    axes.set_yticks(range(len(rates)), [clipped(name, 22) for name, _, _ in reversed(rates)])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.6, len(rates) - 0.4)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("in the label's bin · dashed: one of five by chance · 95 % interval")
