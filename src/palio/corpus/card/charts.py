"""Each picture answers one question about a corpus and shows the numbers that it is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter

from palio.corpus.card.figure import INK, LINE, LOST, MUTED, ONE, THREE, TWO, drawing, short, svg
from palio.corpus.card.spread import Spread
from palio.corpus.card.stats import Stats
from palio.corpus.funnel import Funnel, FunnelStep

AGENTS_SHOWN = 12
REASONS_SHOWN = 4


def charts(stats: Stats) -> dict[str, str]:
    """All pictures by name; "" for what the corpus has no numbers for."""
    if not stats.total.rows:
        return dict.fromkeys(("pools", "agents", "judging", "lengths"), "") | {
            "funnel": funnel_chart(stats.funnel)
        }
    return {
        "funnel": funnel_chart(stats.funnel),
        "pools": pools_chart(stats),
        "agents": agents_chart(stats),
        "judging": judging_chart(stats),
        "lengths": lengths_chart(stats),
    }


def funnel_chart(funnel: Funnel) -> str:
    """How many rows each step leaves, and why the others went."""
    steps = [step for step in funnel.steps if step.rejected] or list(funnel.steps[-1:])
    bars = [("came in", funnel.taken, "")]
    bars += [(step.name, step.kept, _reasons(step)) for step in steps]
    top = max(1, funnel.taken)
    with drawing(0.3 + 0.52 * len(bars)) as (figure, (axes,)):
        for y, (_, rows, reasons) in enumerate(reversed(bars)):
            axes.barh(y, top, 0.42, color=LINE)
            axes.barh(y, rows, 0.42, color=ONE)
            axes.text(1.01 * top, y, f"{rows:,}  ({100 * rows / top:.1f} %)", va="center")
            axes.text(0, y - 0.4, reasons, va="center", fontsize=7.5, color=LOST)
        _names(axes, [name for name, _, _ in reversed(bars)])
        axes.set_xlim(0, 1.13 * top)
        axes.set_ylim(-0.75, len(bars) - 0.5)
        _bare(axes)
        return svg(figure, "funnel", "Rows that each step of the build keeps")


def _reasons(step: FunnelStep) -> str:
    ranked = list(step.rejected.items())
    parts = [f"{short(name)} {n:,}" for name, n in ranked[:REASONS_SHOWN]]
    rest = sum(n for _, n in ranked[REASONS_SHOWN:])
    return "\N{MINUS SIGN} " + ", ".join([*parts, *([f"others {rest:,}"] if rest else [])])


def pools_chart(stats: Stats) -> str:
    """Rows beside different requests, problems and clusters; and how rows pile up on requests."""
    pools = [(name, pool) for name, pool in stats.pools.items() if pool.rows]
    counts = {"rows": (INK, "o"), "queries": (ONE, "D"), "clusters": (THREE, "s")}
    with drawing(1.1 + 0.62 * len(pools), 2, width_ratios=(3, 2)) as (figure, (axes, pile)):
        for y, (_, pool) in enumerate(reversed(pools)):
            values = [getattr(pool, name) for name in counts]
            axes.plot([min(values), max(values)], [y, y], color=LINE, linewidth=5, zorder=1)
            for lift, (name, (colour, mark)) in zip(
                (0.26, -0.3, -0.3), counts.items(), strict=True
            ):
                value = getattr(pool, name)
                axes.plot(value, y, mark, color=colour, markersize=7, label=None if y else name)
                if name != "clusters" or value < 0.8 * pool.queries:  # else they overlap
                    axes.text(value, y + lift, f"{value:,}", ha="center", va="center", fontsize=8)
        _names(axes, [name for name, _ in reversed(pools)])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_thousands())
        axes.margins(x=0.12)
        axes.set_ylim(-0.6, len(pools) - 0.4)
        axes.set_xlabel("how many (logarithmic)")
        figure.legend(loc="outside upper left", ncols=3)
        _histogram(pile, stats.total.rows_per_query, "rows of one request", "requests", ONE)
        return svg(figure, "pools", "Rows, different requests and clusters of each pool")


def agents_chart(stats: Stats) -> str:
    """Whose rows these are, with the part of each agent's trajectories that was kept."""
    agents = list(stats.diversity.agents.items())
    bars = [(name, one.rows, one.taken, one.share) for name, one in agents[:AGENTS_SHOWN]]
    if rest := [one for _, one in agents[AGENTS_SHOWN:]]:
        rows, taken = sum(one.rows for one in rest), sum(one.taken for one in rest)
        share = sum(one.share for one in rest)
        bars.append((f"{len(rest)} other agents", rows, taken, share))
    top = max(rows for _, rows, _, _ in bars)
    with drawing(0.5 + 0.33 * len(bars)) as (figure, (axes,)):
        for y, (_, rows, taken, share) in enumerate(reversed(bars)):
            axes.barh(y, rows, 0.6, color=ONE if y == len(bars) - 1 else TWO)
            kept = f", kept of {taken:,}" if taken else ""
            text = f"{rows:,} rows, {100 * share:.1f} %{kept}"
            axes.text(rows + 0.01 * top, y, text, va="center", fontsize=8.5)
        _names(axes, [name for name, *_ in reversed(bars)])
        axes.set_xlim(0, 1.35 * top)
        axes.set_ylim(-0.6, len(bars) - 0.4)
        _bare(axes)
        return svg(figure, "agents", "Rows of each agent")


def judging_chart(stats: Stats) -> str:
    """Reasoning quality by the judge's five bins, and who emitted the calls, in tenths."""
    judging = stats.judging
    with drawing(2.5, 2) as (figure, (quality, richness)):
        _columns(quality, judging.quality, "reasoning quality (bin of the judge)", TWO)
        tenths = {f"\N{LESS-THAN OR EQUAL TO}{k}": n for k, n in judging.richness.items()}
        tenths["unknown"] = tenths.pop("\N{LESS-THAN OR EQUAL TO}unknown")
        _columns(richness, tenths, "agentic richness (part of calls by the model)", ONE)
        return svg(figure, "judging", "Distribution of reasoning quality and agentic richness")


def lengths_chart(stats: Stats) -> str:
    """Length of a row, and of what the model wrote in it."""
    total = stats.total
    with drawing(2.5, 2) as (figure, (whole, own)):
        if total.tokens is not None:
            _histogram(whole, total.tokens, "tokens of a row", "rows", ONE)
        else:
            _histogram(whole, total.bytes, "bytes of a row's messages (JSON)", "rows", ONE)
        _histogram(own, total.written, "bytes that the model wrote", "rows", TWO)
        return svg(figure, "lengths", "Length of rows, and of what the model wrote in them")


def _columns(axes: Any, counts: dict[str, int], label: str, colour: str) -> None:
    shown = {name: n for name, n in counts.items() if n or name not in ("unjudged", "unknown")}
    top = max(shown.values(), default=1) or 1
    for x, n in enumerate(shown.values()):
        axes.bar(x, n, 0.8, color=colour)
        if n:
            axes.text(x, n + 0.02 * top, f"{n:,}", ha="center", fontsize=7.5)
    axes.set_xticks(range(len(shown)), list(shown), fontsize=7.5)
    axes.set_ylim(0, 1.12 * top)
    axes.set_xlabel(label)
    axes.yaxis.set_major_formatter(_thousands())
    axes.grid(visible=False, axis="x")


def _histogram(axes: Any, held: Spread, label: str, what: str, colour: str) -> None:
    """Bars of a distribution with its median and 99th percentile."""
    widths = [high - low for low, high in zip(held.edges, held.edges[1:], strict=False)]
    axes.bar(
        held.edges[:-1], held.counts, widths, align="edge", color=colour, alpha=0.85, linewidth=0
    )
    if held.edges[0] > 0 and held.most / held.least > 20:
        axes.set_xscale("log")
    elif len(held.counts) <= 8:
        axes.set_xticks([edge + 0.5 for edge in held.edges[:-1]])
    top = 1.2 * max(held.counts)
    for value, name, side in ((held.median, "median", "left"), (held.p99, "p99", "right")):
        axes.axvline(value, color=INK, linewidth=1)
        text = f" {name} {value:,.0f} "
        axes.text(value, 0.99 * top, text, ha=side, va="top", fontsize=7.5, color=MUTED)
    axes.set_ylim(0, top)
    axes.set_xlabel(label)
    axes.set_ylabel(what)
    axes.xaxis.set_major_formatter(_thousands())
    axes.yaxis.set_major_formatter(_thousands())
    axes.grid(visible=False, axis="x")


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value:,.0f}")


def _names(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.tick_params(axis="y", labelcolor=INK)


def _bare(axes: Any) -> None:
    """No scale: every bar carries its number."""
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
