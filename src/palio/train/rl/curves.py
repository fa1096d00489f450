"""The curves of a run as one picture: reward, step reward, groups, calls, distance, audit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from palio.train.stage import read_metrics

PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("strict success of the rollouts", ("success",)),
    ("step reward, a turn", ("step_reward",)),
    ("groups that teach (mixed)", ("groups/mixed",)),
    ("calls a rollout", ("calls/per_rollout",)),
    ("KL to the start, nats a token", ("kl_to_start",)),
    ("invented ids a rollout", ("audit/invented_ids",)),
)
_SMOOTH = 5
"""Steps of the running mean; one step has 64 to 128 rollouts, so a point is worth +-5 points."""


def draw_curves(runs: Mapping[str, Path], target: Path) -> Path:
    """Write a PNG or SVG; each run is one line in every panel, thin as measured, thick smoothed.

    Args:
        runs: name -> stage folder with a `metrics.jsonl`.
        target: file to write.
    """
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), layout="constrained")
    for axis, (title, names) in zip(axes.flat, PANELS, strict=True):
        for number, (label, folder) in enumerate(runs.items()):
            rows = read_metrics(folder)
            for name in names:
                points = [(row["step"], float(row[name])) for row in rows if name in row]
                if not points:
                    continue
                steps, values = zip(*points, strict=True)
                colour = f"C{number}"
                axis.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
                axis.plot(steps, _smoothed(values), color=colour, label=label, linewidth=1.8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=8, frameon=False)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
    return target


def _smoothed(values: tuple[float, ...]) -> list[float]:
    parts = [values[max(0, at + 1 - _SMOOTH) : at + 1] for at in range(len(values))]
    return [sum(part) / len(part) for part in parts]
