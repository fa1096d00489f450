"""Pictures of a corpus are inline SVG, the same bytes for the same numbers, in the page's colours.

Matplotlib draws with stand-in colours; on the way out each becomes a CSS variable, so that a page
in dark mode has dark pictures.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COLOURS = {
    "ink": "#1b2331",
    "muted": "#667086",
    "line": "#e2e6ee",
    "one": "#2f6fdf",
    "two": "#1f9d79",
    "three": "#d98a20",
    "lost": "#c8453c",
}
"""CSS variable -> the colour that stands for it; no two are equal, none is used otherwise."""
INK, MUTED, LINE, ONE, TWO, THREE, LOST = COLOURS.values()
WIDTH = 8.4  # inches; the page shows it at about 840 pixels

_LOOK = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: it can be read, searched and follows the theme
    "text.parse_math": False,  # an agent may be called "$x$"
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": LINE,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "legend.frameon": False,
}


@contextmanager
def drawing(height: float, columns: int = 1, **ratios: Any) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure with `columns` pairs of axes side by side, `height` inches high."""
    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="none")
        axes = figure.subplots(1, columns, squeeze=False, **ratios)[0]
        for one in axes:
            one.set_facecolor("none")
        yield figure, list(axes)


def svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an SVG element for a page.

    Args:
        figure: drawn inside `drawing`.
        name: unique on the page; the ids of the picture start with it.
        label: what it shows, for those who do not see it.
    """
    buffer = io.StringIO()
    with mpl.rc_context({**_LOOK, "svg.hashsalt": name}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    body = buffer.getvalue().partition("<svg")[2]
    head, _, inner = body.partition(">")
    inner = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", inner, flags=re.DOTALL)
    inner = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", inner).replace("xlink:href", "href")
    for variable, colour in COLOURS.items():
        inner = inner.replace(colour, f"var(--{variable})")
    box = re.search(r'viewBox="([^"]*)"', head)
    assert box is not None, "matplotlib always writes a view box"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="{box[1]}" role="img" '
        f'aria-label="{escape(label)}">{inner.strip()}'
    )


def short(text: str, most: int = 30) -> str:
    """A name that fits beside a bar, with what cannot be printed made visible."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
