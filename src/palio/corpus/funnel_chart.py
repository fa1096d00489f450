"""The funnel as one picture: rows of every step, what it dropped and why, the pools at the end."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from palio.corpus.funnel import Funnel, FunnelStep
from palio.records import ConfigError

INK, MUTED, KEPT, DROPPED, BAND = "#1f2933", "#66788a", "#2a6f97", "#d9822b", "#dbe7ee"
POOL_COLOURS = {"train": "#2a6f97", "development": "#61a5c2", "heldout": "#1b998b"}
REASONS_SHOWN = 3
REASON_WIDTH = 44
FORMATS = (".png", ".svg")


def draw_funnel(funnel: Funnel, path: Path, title: str = "Corpus funnel") -> Path:
    """Draw a funnel to a PNG or SVG file.

    Bars share one scale, so lengths compare; a pale band leads from what entered a step to what
    left it, and the reasons beside it are the step's largest.

    Raises:
        ConfigError: the file name ends neither in .png nor in .svg.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"cannot draw to {path.suffix or 'a name without ending'}",
            where=str(path),
            remedy="name a .png or .svg file",
        )
    steps = [step for step in funnel.steps if step.taken or step.rejected] or list(funnel.steps)
    figure = Figure(figsize=(10.4, 1.5 + 0.52 * (len(steps) + 2)), dpi=160)
    axes = figure.add_axes((0.155, 0.03, 0.83, 0.85))
    top = max(1, funnel.taken)
    _bar(axes, 0, funnel.taken, top, "came in")
    for row, step in enumerate(steps, start=1):
        _band(axes, row, step)
        _bar(axes, row, step.kept, top, step.name)
        _reasons(axes, row, step, top)
    _pools(axes, len(steps) + 1, funnel, top)
    axes.set_xlim(0, top * 1.72)
    axes.set_ylim(len(steps) + 1.75, -0.5)
    axes.axis("off")
    figure.text(0.02, 0.955, title, fontsize=15, fontweight="bold", color=INK, va="center")
    figure.text(0.02, 0.915, _subtitle(funnel), fontsize=9.5, color=MUTED, va="center")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Software": None} if path.suffix == ".png" else {"Date": None}
    figure.savefig(path, facecolor="white", metadata=metadata)
    return path


def _subtitle(funnel: Funnel) -> str:
    share = 100 * funnel.kept / funnel.taken if funnel.taken else 0
    queries = sum(count.queries for count in funnel.pools.values())
    clusters = sum(count.clusters for count in funnel.pools.values())
    return (
        f"{funnel.taken:,} trajectories in, {funnel.kept:,} rows kept ({share:.1f} %), "
        f"{queries:,} different queries in {clusters:,} leak clusters"
    )


def _bar(axes: Any, row: int, rows: int, top: int, name: str) -> None:
    axes.barh(row, rows, height=0.56, color=KEPT if row else INK, zorder=2)
    axes.text(-0.012 * top, row, name, ha="right", va="center", fontsize=10, color=INK)
    inside = rows > 0.16 * top
    axes.text(
        rows - 0.01 * top if inside else rows + 0.01 * top,
        row,
        f"{rows:,}",
        ha="right" if inside else "left",
        va="center",
        fontsize=10,
        color="white" if inside else INK,
        fontweight="bold",
        zorder=3,
    )


def _band(axes: Any, row: int, step: FunnelStep) -> None:
    """The slope between two bars, and in orange what the step took away."""
    corners = [(0, row - 0.72), (step.taken, row - 0.72), (step.kept, row - 0.28), (0, row - 0.28)]
    axes.add_patch(Polygon(corners, closed=True, facecolor=BAND, edgecolor="none", zorder=1))
    lost = step.taken - step.kept
    if lost:
        axes.barh(row, lost, left=step.kept, height=0.56, color=DROPPED, alpha=0.22, zorder=1)


def _reasons(axes: Any, row: int, step: FunnelStep, top: int) -> None:
    """The largest reasons, right of the place where the bars end."""
    named = list(step.rejected.items())[:REASONS_SHOWN]
    parts = [f"{reason.replace('_', ' ')} {count:,}" for reason, count in named]
    rest = sum(step.rejected.values()) - sum(count for _, count in named)
    if rest:
        parts.append(f"other {rest:,}")
    lost = step.taken - step.kept
    if not lost:
        return
    number = {"ha": "right", "fontsize": 10, "color": DROPPED, "fontweight": "bold"}
    axes.text(1.15 * top, row, f"\N{MINUS SIGN}{lost:,}", va="center", **number)
    lines = textwrap.fill(", ".join(parts), REASON_WIDTH)
    beside = {"ha": "left", "fontsize": 8, "color": MUTED, "linespacing": 1.25}
    axes.text(1.17 * top, row, lines, va="center", **beside)


def _pools(axes: Any, row: int, funnel: Funnel, top: int) -> None:
    """The last bar is cut into the pools; the key stands under it."""
    axes.text(-0.012 * top, row, "split", ha="right", va="center", fontsize=10, color=INK)
    start = 0
    for place, (pool, count) in enumerate(funnel.pools.items()):
        colour = POOL_COLOURS.get(pool, MUTED)
        axes.barh(row, count.rows, left=start, height=0.56, color=colour, zorder=2, ec="white")
        at = place * 0.56 * top
        axes.barh(row + 0.56, 0.016 * top, left=at, height=0.18, color=colour)
        label = f"{pool}: {count.rows:,} rows, {count.problems:,} problems"
        axes.text(at + 0.025 * top, row + 0.56, label, va="center", fontsize=9, color=INK)
        start += count.rows
