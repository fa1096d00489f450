"""Training within the main job: one recipe over the corpus gives a base and a trained policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from palio.evaluate.charts import CurvePoint
from palio.evaluate.mainjob.config import MainJobConfig
from palio.evaluate.mainjob.worlds import Ground
from palio.judging import default_encoder
from palio.records import ConfigError
from palio.train import run as training
from palio.train.checkpoint import MANIFEST
from palio.train.ground import TRAIN, Worlds
from palio.train.ground import Ground as TrainingGround
from palio.train.ranges import check_recipe
from palio.train.reading import load_recipe
from palio.train.recipe import Recipe, shortened, tokens_of
from palio.train.stage import Step
from palio.train.stages import kind_named
from palio.world.artefacts import file_digest

Advance = Callable[[int, str], None]
BASE, TRAINED = "base", "trained"
"""What is measured first and last; a stage between them goes by its own name."""

_NO_TOKENS = 3_000_000
"""What a stage that is counted in rollouts weighs in the progress, beside tokens of the others."""

_LABELS = {"sft": "SFT", "kto": "KTO", "grpo": "Dr. GRPO"}


class Milestone(NamedTuple):
    """A checkpoint of the chain that is measured.

    Attributes:
        key: name of the job's stage that measures it, and of its folder.
        label: what tables call it.
        stage: of the recipe.
    """

    key: str
    label: str
    stage: str


def recipe_of(config: MainJobConfig) -> Recipe:
    """The recipe, once it is known to be one that the main job can run.

    Raises:
        ConfigError: it does not start with a base, or has no stage after it.
    """
    recipe = load_recipe(config.recipe)
    kinds = [stage.kind for stage in recipe.stages]
    if kinds[0] != "base" or len(kinds) < 2:
        raise ConfigError(
            f"the main job trains a base and then further stages, not {', '.join(kinds)}",
            where=config.recipe,
            remedy="name a recipe such as demo or tiny; `palio train` runs every recipe",
        )
    recipe = msgspec.structs.replace(recipe, seed=recipe.seed + config.seed)
    check_recipe(recipe, config.recipe)  # with the seed that the job adds
    return shortened(recipe, config.training_minutes) if config.training_minutes else recipe


def milestones(recipe: Recipe) -> tuple[Milestone, ...]:
    """The checkpoints that are measured, in the chain's order."""
    first, *between, last = (stage.name for stage in recipe.stages)
    return (
        Milestone(BASE, label_of(first), first),
        *(Milestone(f"after-{name}", f"after {label_of(name)}", name) for name in between),
        Milestone(TRAINED, f"after {label_of(last)}", last),
    )


def label_of(stage: str) -> str:
    """What curves and tables call a stage."""
    return _LABELS.get(stage, stage)


def train(
    config: MainJobConfig, ground: Ground, out: Path, folder: Path, advance: Advance
) -> dict[str, Any]:
    """Run the recipe on the corpus under `out`; `advance` gets percent and the loss."""
    recipe = recipe_of(config)
    sizes = [tokens_of(stage) or _NO_TOKENS for stage in recipe.stages]

    def note(step: Step) -> None:
        done = sum(sizes[: step.number - 1]) + step.share * sizes[step.number - 1]
        advance(round(100 * done / sum(sizes)), f"{label_of(step.stage)} {step.note}")

    options = training.Options(threads=config.workers, report=note, clock=time.monotonic)
    made = training.train(
        recipe, out / "corpus", folder, ground=_training_ground(recipe, ground), options=options
    )
    tokens = sum(stage.counts.get("tokens", 0) for stage in made.stages)
    told = f"{tokens / 1e6:.1f} M tokens in all"
    sft = next((stage.counts for stage in made.stages if stage.kind == "sft"), None)
    if sft is not None:
        told = f"{sft['trajectories']:,} trajectories, {told}"
    return {
        "shortened": made.shortened,
        "note": told,
        "checkpoints": [file_digest(stage.checkpoint / MANIFEST) for stage in made.stages],
    }


def _training_ground(recipe: Recipe, ground: Ground) -> TrainingGround | None:
    """Training problems and their worlds, where a stage rolls out."""
    if not any(kind_named(stage.kind).ground for stage in recipe.stages):
        return None
    worlds = Worlds({name: partial(ground.world, name) for name in ground.catalogue_ids})
    return TrainingGround(ground.pool(TRAIN), worlds, default_encoder())


def read_curve(folder: Path) -> tuple[CurvePoint, ...]:
    """The learning curve with tokens counted over all stages."""
    curve: list[CurvePoint] = []
    before, stage = 0, ""
    for point in training.read_curve(folder):
        if point.stage != stage:
            before, stage = (curve[-1].tokens if curve else 0), point.stage
        label = label_of(stage)
        tokens = point.tokens + before
        curve.append(CurvePoint(stage=label, step=point.step, tokens=tokens, loss=point.loss))
    return tuple(curve)
