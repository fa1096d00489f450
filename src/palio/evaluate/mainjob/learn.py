"""Training within the main job: one recipe over the corpus gives a base and a trained policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from palio.evaluate.charts import CurvePoint
from palio.evaluate.mainjob.config import MainJobConfig
from palio.train import run as training
from palio.train.loop import Point
from palio.train.recipe import load_recipe, shortened

BASE, TRAINED = "base", "trained"
_FOLDERS = {BASE: training.BASE, TRAINED: training.SFT}
_LABELS = {training.BASE: "base", training.SFT: "SFT"}


def train(
    config: MainJobConfig, corpus: Path, folder: Path, advance: Callable[[int, str], None]
) -> dict[str, Any]:
    """Run the recipe; `advance` gets percent and the loss."""
    recipe = load_recipe(config.recipe)
    recipe = msgspec.structs.replace(recipe, seed=recipe.seed + config.seed)
    if config.training_minutes:
        recipe = shortened(recipe, config.training_minutes)

    def note(share: float, point: Point) -> None:
        label = _LABELS.get(point.stage, point.stage)
        advance(
            round(100 * share),
            f"{label} loss {point.loss:.3f}, {point.tokens_per_s:,.0f} tokens/s",
        )

    made = training.train(
        recipe, corpus, folder, report=note, threads=config.workers, clock=time.monotonic
    )
    points = training.read_curve(folder)
    last = {point.stage: point for point in points}
    tokens = sum(point.tokens for point in last.values())
    return {
        "trajectories": made.trajectories,
        "dropped": made.dropped,
        "shortened": made.shortened,
        "tokens": tokens,
        "note": f"{made.trajectories:,} trajectories, {tokens / 1e6:.1f} M tokens in all",
    }


def checkpoint(folder: Path, name: str) -> Path:
    """The checkpoint of `BASE` or `TRAINED` in the folder of the training."""
    return folder / _FOLDERS[name]


def read_curve(folder: Path) -> tuple[CurvePoint, ...]:
    """The learning curve with tokens counted over both stages."""
    points = training.read_curve(folder)
    before = max((point.tokens for point in points if point.stage == training.BASE), default=0)
    return tuple(
        CurvePoint(
            stage=_LABELS.get(point.stage, point.stage),
            step=point.step,
            tokens=point.tokens + (before if point.stage == training.SFT else 0),
            loss=point.loss,
        )
        for point in points
    )
