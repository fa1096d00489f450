"""Effects as a forest plot: a dot a seed, a bar the interval over seeds, a band of no interest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from palio.evaluate.experiment.analysis import LEAST_SEEDS, Effect, PlanResult
from palio.evaluate.experiment.plan import Plan
from palio.evaluate.experiment.runs import ArmRun
from palio.evaluate.figure import BAD, INK, LINE, MUTED, SERIES, clipped, drawing, svg


def overview_chart(plans: Sequence[Plan], results: Sequence[PlanResult]) -> str:
    """The first contrast of every plan that has a seed, in the order of the plans, as SVG.

    "" where none has.
    """
    found = [
        (f"{plan.name}: {_name(result.effects[0])}", result.effects[0])
        for plan, result in zip(plans, results, strict=True)
        if result.effects and result.effects[0].seeds
    ]
    if not found:
        return ""
    with drawing(1.1 + 0.42 * len(found), grid="x") as (figure, axes):
        _forest(axes, found)
        axes.set_xlabel(
            "percentage points \N{MIDDLE DOT} dot: a seed \N{MIDDLE DOT} line: 95 % interval over "
            f"seeds, grey: of fewer than {LEAST_SEEDS}"
        )
        return svg(figure, name="effects-overview", label="The primary contrast of every plan")


def effects_chart(plan: Plan, result: PlanResult) -> str:
    """The contrasts of a plan, from the top in the plan's order, as SVG."""
    with drawing(1.1 + 0.5 * len(result.effects), grid="x") as (figure, axes):
        axes.axvspan(-plan.smallest, plan.smallest, color=LINE, alpha=0.6, linewidth=0)
        _forest(axes, [(_name(effect), effect) for effect in result.effects])
        n = f"{result.sampled:,} x {plan.samples}" if plan.measure == "pass@1" else f"{result.n:,}"
        axes.set_xlabel(
            f"percentage points ({plan.measure}, n = {n}) · dot: a seed · line: 95 % "
            f"interval over seeds · band: below {100 * plan.smallest:g} points"
        )
        return svg(figure, name=f"effects-{plan.name}", label=f"{plan.question} Effects by seed")


def _name(effect: Effect) -> str:
    same = effect.arm == effect.against
    return "exposed - unexposed" if same else f"{effect.arm} - {effect.against}"


def _forest(axes: Axes, rows: Sequence[tuple[str, Effect]]) -> None:
    """Effects from the top, each with its name; colours tell what is lower, or of too few seeds."""
    axes.axvline(0, color=MUTED, linewidth=1)
    for y, (_, effect) in enumerate(reversed(rows)):
        if effect.low is not None and effect.high is not None:
            enough = len(effect.seeds) >= LEAST_SEEDS
            colour = INK if enough else MUTED
            axes.plot([effect.low, effect.high], [y, y], color=colour, linewidth=1.6)
        for each in effect.seeds:
            axes.plot(each.difference, y, "o", color=SERIES[0], markersize=5, alpha=0.65)
        if effect.mean is not None:
            tested = effect.p_holm is not None and effect.p_holm < 0.05
            colour = BAD if tested and effect.mean < 0 else INK
            axes.plot(effect.mean, y, "|", color=colour, markersize=13, markeredgewidth=2.2)
    axes.set_yticks(range(len(rows)), [clipped(name, 44) for name, _ in reversed(rows)])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:+.0f}"))


def headroom_chart(plan: Plan, runs: Sequence[ArmRun], temperature: float) -> str:
    """pass@1 and pass@k of every arm, in the plan's order, as SVG; the line between is headroom.

    Args:
        plan: what is told.
        runs: of the plan.
        temperature: of their sampled rollouts.
    """
    k = str(plan.samples)
    arms = [arm.name for arm in plan.arms if any(run.arm == arm.name for run in runs)]
    named: set[str] = set()
    with drawing(2.9) as (figure, axes):
        for x, name in enumerate(arms):
            found = [
                run.pass_at for run in runs if run.arm == name and {k, "1"} <= run.pass_at.keys()
            ]
            if not found:
                continue
            ends = [float(np.mean([each[key] for each in found])) for key in ("1", k)]
            axes.plot([x, x], ends, color=LINE, linewidth=6, zorder=1)
            for key, colour, label in (("1", SERIES[0], "pass@1"), (k, SERIES[2], f"pass@{k}")):
                axes.plot(
                    [x] * len(found),
                    [each[key] for each in found],
                    "o",
                    color=colour,
                    markersize=5.5,
                    alpha=0.75,
                    label=None if label in named else label,
                )
                named.add(label)
        axes.set_xticks(range(len(arms)), [clipped(name, 16) for name in arms])
        axes.tick_params(axis="x", labelcolor=INK)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        many = max(run.sampled for run in runs)
        axes.set_xlabel(
            f"dot: a seed, {many} problems, T = {temperature:g} \N{MIDDLE DOT} bar: headroom"
        )
        if named:
            axes.legend(loc="upper left")
        return svg(figure, name=f"headroom-{plan.name}", label=f"{plan.name}: pass@1 and pass@{k}")
