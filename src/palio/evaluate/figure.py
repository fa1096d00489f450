"""One look for every picture: deterministic SVG whose colours follow the page's theme.

Matplotlib draws with the fallback colours below; on the way out each becomes a CSS variable, so
that an inline picture turns dark with its page and a saved one still shows.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from palio.records import ConfigError

FORMATS = (".png", ".svg")
COLOURS: Mapping[str, str] = {
    "ink": "#1b2330",
    "muted": "#667085",
    "line": "#e2e6ed",
    "paper": "#fefefe",
    "series-1": "#2f6fde",
    "series-2": "#8a94a6",
    "series-3": "#d98a1f",
    "series-4": "#1f9d78",
    "series-5": "#b4509a",
    "series-6": "#6b5bd2",
    "soft": "#cfd6e1",
    "bad": "#c8453b",
}
"""CSS variable name -> colour of the light theme; every value is used for that name alone."""

INK, MUTED, LINE, PAPER = (COLOURS[name] for name in ("ink", "muted", "line", "paper"))
SOFT, BAD = COLOURS["soft"], COLOURS["bad"]
SERIES = tuple(colour for name, colour in COLOURS.items() if name.startswith("series-"))
WIDTH = 8.6  # inches; 619 units of the view box, shown at about 860 pixels

STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # an agent may be called "$x$"
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
}


@contextmanager
def drawing(
    height: float, *, grid: Literal["x", "y", "both"] = "y"
) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one pair of axes in palio's look.

    Args:
        height: inches; the width is always `WIDTH`.
        grid: which grid lines to show, "x", "y" or "both".
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=False)
        axes.grid(visible=True, axis=grid)
        yield figure, axes


def svg(figure: Figure, *, name: str, label: str) -> str:
    """The figure as an inline SVG element, the same bytes for the same figure.

    Args:
        figure: drawn within `drawing`.
        name: unique on the page; ids inside the picture are derived from it.
        label: what the picture shows, for readers who do not see it.
    """
    buffer = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)([^")]+)', rf"\1{name}-\2", text)
    for variable, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{variable}, {colour})")
    return _head(text, name, label)


def _head(text: str, name: str, label: str) -> str:
    """Drop the fixed size, add the label; the view box keeps the proportions."""
    end = text.index(">")
    opening = re.sub(r'\s(width|height|version|xmlns:xlink)="[^"]*"', "", text[:end])
    body = text[end:].replace("xlink:href", "href")
    attributes = f' class="chart" role="img" aria-labelledby={quoteattr(name + "-title")}'
    title = f"<title id={quoteattr(name + '-title')}>{escape(label)}</title>"
    return opening + attributes + body[:1] + title + body[1:].rstrip()


def save_picture(
    path: Path, draw: Callable[[Figure], None], *, height: float, name: str, label: str
) -> None:
    """Draw into a .png or .svg file.

    Args:
        path: of the file.
        draw: fills an empty figure.
        height: inches.
        name: see `svg`.
        label: see `svg`.

    Raises:
        ConfigError: the file name ends in neither.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"a picture cannot be written to {path.name!r}", remedy=f"use {' or '.join(FORMATS)}"
        )
    with drawing(height, grid="x") as (figure, axes):
        axes.remove()
        draw(figure)
        if path.suffix == ".png":
            figure.savefig(path, dpi=160, facecolor="white", metadata={"Software": None})
            return
        size = f"<svg width='{100 * WIDTH:.0f}' height='{100 * height:.0f}'"
        text = svg(figure, name=name, label=label).replace("<svg", size, 1)
    path.write_text(text, encoding="utf-8")


def percent(value: float | None) -> str:
    """A rate as a short percentage; "n/a" for None."""
    return "n/a" if value is None else f"{100 * value:.1f} %"


def p_value(value: float | None) -> str:
    """A p-value to four places, never as 0, which no test can show; a dash for None."""
    if value is None:
        return "\N{EN DASH}"
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def clipped(text: str, limit: int = 28) -> str:
    """A label that fits, with control characters made visible."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
