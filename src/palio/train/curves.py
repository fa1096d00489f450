"""What the stages of runs logged, stage by stage, and as one picture with the runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

from palio.records import ConfigError, InputError
from palio.train.run import CHAIN
from palio.train.stage import read_metrics
from palio.world.artefacts import naming, read_manifest


class Panel(NamedTuple):
    """One picture in the picture.

    Attributes:
        names: columns of `metrics.jsonl`; each is a line.
        floor: lowest value that is always shown; None: as the values fall.
        once: whether a column that says what one before it says is left out.
    """

    title: str
    names: tuple[str, ...]
    floor: float | None = 0.0
    once: bool = False


class Curve(NamedTuple):
    """What one stage logged, in order."""

    stage: str
    kind: str
    rows: list[dict[str, Any]]


LOSS = Panel("loss, nats a token", ("loss",), None)
LEARNING = (LOSS, Panel("tokens guessed right", ("mean_token_accuracy",)))
SUCCESS = Panel("success of rollouts", ("success", "reward"), once=True)
CALLS = Panel("calls a rollout", ("calls/per_rollout",))
INVENTED = Panel("invented ids a rollout", ("audit/invented_ids",))
PANELS: dict[str, tuple[Panel, ...]] = {
    "distill": (Panel("divergence from the teacher", ("loss",), None), SUCCESS, CALLS, INVENTED),
    "kto": (
        Panel("loss", ("loss",), None),
        Panel("margin, right over wrong", ("rewards/margins",), None),
        Panel("reward of right and wrong", ("rewards/chosen", "rewards/rejected"), None),
        Panel("KL estimate", ("kl",)),
    ),
    "grpo": (
        SUCCESS,
        Panel("credit of a turn", ("step_reward", "step_reward/uncredited")),
        Panel("groups by success", ("groups/mixed", "groups/all_fail", "groups/all_success")),
        CALLS,
        Panel("KL to the start, nats a token", ("kl_to_start",)),
        INVENTED,
        Panel("sampler against trainer, nats", ("sampling/logp_gap",)),
    ),
}
"""Kind of stage -> what is shown of it; of all others `LEARNING`. Panels without values are left
out."""
COLUMNS = 4
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
STROKES = ("-", "--", ":")
FAR = 20
"""A loss that falls by this factor is drawn on a logarithmic scale."""
SMOOTH = 5
"""Values of the running mean, at least; a step of 64 to 128 rollouts is worth +-5 points."""


def read_curves(named: Path) -> list[Curve]:
    """The stages that have logged something, in the recipe's order.

    Args:
        named: a run folder, or the folder of one stage, which is then called by its kind, so that
            stages of any name can be compared.

    Raises:
        InputError: there is nothing yet.
    """
    chain = read_manifest(named / CHAIN)
    if chain is not None:
        stages = [(str(stage["name"]), str(stage["kind"])) for stage in chain.config["stages"]]
        found = [Curve(name, kind, read_metrics(named / name)) for name, kind in stages]
    else:
        rows = read_metrics(named)
        kind = _kind(named, rows)
        found = [Curve(kind, kind, rows)]
    found = [curve for curve in found if curve.rows]
    if not found:
        raise InputError(
            "no learning curve yet", where=str(named), remedy="name a run or a stage that has begun"
        )
    return found


def _kind(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Of a stage that is named by itself: as its run says, or as its columns tell."""
    chain = read_manifest(folder.parent / CHAIN)
    for stage in chain.config["stages"] if chain else ():
        if stage["name"] == folder.name:
            return str(stage["kind"])
    columns = {name for row in rows for name in row}
    return "grpo" if "groups/mixed" in columns else "kto" if "kl" in columns else "sft"


def shown(curve: Curve) -> list[Panel]:
    """The panels of a stage that have values."""
    panels = PANELS.get(curve.kind, LEARNING)
    held = [panel._replace(names=_held(curve.rows, panel)) for panel in panels]
    return [panel for panel in held if panel.names]


def _held(rows: Sequence[Mapping[str, Any]], panel: Panel) -> tuple[str, ...]:
    """The panel's columns that have values."""
    values = {name: [row[name] for row in rows if name in row] for name in panel.names}
    told: list[str] = []
    for name in panel.names:
        said = panel.once and any(values[name] == values[other] for other in told)
        if values[name] and not said:
            told.append(name)
    return tuple(told)


def draw_curves(runs: Mapping[str, Path], target: Path) -> Path:
    """Write a picture: a panel for each thing that a stage logs, a colour for each run.

    A thin line is what was measured, a thick one its running mean. Stages of the same name share
    their panels.

    Args:
        runs: name -> run folder, or folder of one stage.
        target: file to write, .png or .svg.

    Raises:
        ConfigError: another ending, or no run.
        InputError: a run has nothing yet.
    """
    if target.suffix not in (".png", ".svg"):
        raise ConfigError("a picture ends in .png or .svg", where=str(target))
    if not runs:
        raise ConfigError("there is no run to draw")
    read = {label: read_curves(folder) for label, folder in runs.items()}
    places: dict[tuple[str, str], Panel] = {}
    for curves in read.values():
        for curve in curves:
            for panel in shown(curve):
                place = (curve.stage, panel.title)
                names = (*places[place].names, *panel.names) if place in places else panel.names
                places[place] = panel._replace(names=tuple(dict.fromkeys(names)))
    wide = min(COLUMNS, len(places))
    high = -(-len(places) // wide)
    with pyplot.rc_context({"svg.hashsalt": "palio", "svg.fonttype": "none", "font.size": 8}):
        size = (3.2 * wide, 2.3 * high + 0.4)
        figure, axes = pyplot.subplots(
            high, wide, figsize=size, squeeze=False, layout="constrained"
        )
        for axis in axes.flat[len(places) :]:
            axis.set_visible(False)
        for axis, ((stage, _), panel) in zip(axes.flat, places.items(), strict=False):
            _panel(axis, stage, panel, read)
        _legend(figure, list(runs))
        still = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
        with naming(target):
            figure.savefig(target, dpi=120, **still)
        pyplot.close(figure)
    return target


def _panel(axis: Any, stage: str, panel: Panel, read: Mapping[str, Sequence[Curve]]) -> None:
    counted = "step"
    for number, curves in enumerate(read.values()):
        colour = COLOURS[number % len(COLOURS)]
        for curve in curves:
            if curve.stage != stage:
                continue
            counted = "tokens" if "tokens" in curve.rows[0] else "step"
            for name, stroke in zip(panel.names, STROKES, strict=False):
                _line(axis, curve.rows, counted, name, colour=colour, stroke=stroke)
    axis.set_title(stage, loc="left", fontweight="bold")
    axis.set_title(panel.title, loc="right")
    axis.set_xlabel(counted)
    if counted == "tokens":
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _scale(axis, panel)
    axis.margins(x=0.02)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if len(panel.names) > 1:
        for name, stroke in zip(panel.names, STROKES, strict=False):
            axis.plot([], [], color="#444444", linestyle=stroke, label=name.rpartition("/")[2])
        low, high = axis.get_ylim()
        axis.set_ylim(top=high + 0.15 * (high - low))  # room for the legend over the lines
        axis.legend(
            fontsize=7, frameon=False, loc="upper left", ncols=len(panel.names), borderpad=0
        )


def _scale(axis: Any, panel: Panel) -> None:
    """Logarithmic where a loss falls a long way; else from the panel's floor."""
    values = [float(value) for line in axis.get_lines() for value in line.get_ydata()]
    if panel.floor is not None:
        axis.set_ylim(bottom=panel.floor)
    elif panel.names == ("loss",) and min(values) > 0 and max(values) > FAR * min(values):
        axis.set_yscale("log")
        return
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _line(
    axis: Any,
    rows: Sequence[Mapping[str, Any]],
    counted: str,
    name: str,
    *,
    colour: str,
    stroke: str,
) -> None:
    points = [
        (row.get(counted, at), float(row[name])) for at, row in enumerate(rows) if name in row
    ]
    if not points:
        return
    places, values = zip(*points, strict=True)
    mean = smoothed(values, max(SMOOTH, len(values) // 40))
    axis.plot(places, values, color=colour, alpha=0.3, linewidth=0.8)
    mark = "o" if len(points) == 1 else ""
    axis.plot(places, mean, color=colour, linestyle=stroke, linewidth=1.6, marker=mark)


def _legend(figure: Any, labels: Sequence[str]) -> None:
    """Which colour is which run, above all panels; one run needs no legend but its name."""
    if len(labels) == 1:
        figure.suptitle(labels[0], x=0.01, ha="left", fontsize=9)
        return
    lines = [
        pyplot.Line2D([], [], color=COLOURS[at % len(COLOURS)], linewidth=2, label=label)
        for at, label in enumerate(labels)
    ]
    figure.legend(
        handles=lines, loc="outside upper left", ncols=len(lines), frameon=False, fontsize=9
    )


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and of those before it, `window` of them."""
    parts = [values[max(0, at + 1 - window) : at + 1] for at in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def labels_of(folders: Sequence[Path]) -> dict[str, Path]:
    """A short name for each run: the last part of its path, more parts where two would be alike."""
    parts = 1
    whole = [folder.resolve().parts for folder in folders]
    longest = max((len(each) for each in whole), default=1)
    while len({each[-parts:] for each in whole}) < len(set(whole)) and parts < longest:
        parts += 1
    return {"/".join(each[-parts:]): folder for each, folder in zip(whole, folders, strict=True)}
