"""Training within the main job: one recipe over the corpus gives a base and a trained policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from palio.evaluate.charts import CurvePoint
from palio.evaluate.mainjob.config import MainJobConfig
from palio.records import ConfigError
from palio.train import run as training
from palio.train.checkpoint import CHECKPOINT
from palio.train.recipe import Recipe, load_recipe, shortened, tokens_of
from palio.train.stage import Step

BASE, TRAINED = "base", "trained"
_LABELS = {"base": "base", "sft": "SFT"}


def recipe_of(config: MainJobConfig) -> Recipe:
    """The recipe, once it is known to be one that the main job can run.

    Raises:
        ConfigError: it needs training problems, or has no base and no stage after it.
    """
    recipe = load_recipe(config.recipe)
    kinds = [stage.kind for stage in recipe.stages]
    if kinds[0] != "base" or set(kinds[1:]) != {"sft"}:
        raise ConfigError(
            f"the main job trains a base and then sft, not {', '.join(kinds)}",
            where=config.recipe,
            remedy="name a recipe such as demo; `palio train` runs every recipe",
        )
    recipe = msgspec.structs.replace(recipe, seed=recipe.seed + config.seed)
    return shortened(recipe, config.training_minutes) if config.training_minutes else recipe


def train(
    config: MainJobConfig, corpus: Path, folder: Path, advance: Callable[[int, str], None]
) -> dict[str, Any]:
    """Run the recipe; `advance` gets percent and the loss."""
    recipe = recipe_of(config)
    sizes = [tokens_of(stage) for stage in recipe.stages]

    def note(step: Step) -> None:
        done = sum(sizes[: step.number - 1]) + step.share * sizes[step.number - 1]
        label = _LABELS.get(step.stage, step.stage)
        advance(round(100 * done / sum(sizes)), f"{label} {step.note}")

    options = training.Options(threads=config.workers, report=note, clock=time.monotonic)
    made = training.train(recipe, corpus, folder, options=options)
    last = made.stages[-1].counts
    tokens = sum(stage.counts["tokens"] for stage in made.stages)
    return {
        "trajectories": last["trajectories"],
        "dropped": last["dropped"],
        "shortened": made.shortened,
        "tokens": tokens,
        "note": f"{last['trajectories']:,} trajectories, {tokens / 1e6:.1f} M tokens in all",
    }


def checkpoint(folder: Path, name: str) -> Path:
    """The checkpoint of `BASE` or `TRAINED` in the folder of the training."""
    return folder / BASE / CHECKPOINT if name == BASE else training.final_checkpoint(folder)


def read_curve(folder: Path) -> tuple[CurvePoint, ...]:
    """The learning curve with tokens counted over all stages."""
    curve: list[CurvePoint] = []
    before, stage = 0, ""
    for point in training.read_curve(folder):
        if point.stage != stage:
            before, stage = (curve[-1].tokens if curve else 0), point.stage
        label = _LABELS.get(stage, stage)
        tokens = point.tokens + before
        curve.append(CurvePoint(stage=label, step=point.step, tokens=tokens, loss=point.loss))
    return tuple(curve)
