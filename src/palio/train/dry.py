"""A dry run takes every stage of a recipe through its mechanics in minutes; it shows no result.

Weights are random and cut down to few layers of the real width, problems are a handful of a small
synthetic world, rows are a scripted model's, any rollout counts as good enough to train on, and
every stage makes a step or two. What it proves is that the stages of this recipe work together on
this machine, at this shape, with this tokenizer. Everything that it writes says `dry`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.corpus.rows import row_of
from palio.judging.encoders import default_encoder
from palio.records import ConfigError, to_json
from palio.rollout.problem import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train.ground import Ground
from palio.train.recipe import DataConfig, Recipe
from palio.train.run import Options, Trained, train
from palio.train.stage import Step
from palio.train.stages import kind_named
from palio.world.artefacts import write_lines
from palio.world.synthesis.config import compact_config
from palio.world.synthesis.synthesise import synthesise
from palio.world.tools import FOUR_TOOLS
from palio.world.world import COMPACT, World

PROBLEMS, ROWS = 6, 30
LONGEST = 3000
"""Tokens; rows offer four tools, which keeps them under 1,500 in Qwen3's vocabulary."""


def rehearsed(recipe: Recipe) -> Recipe:
    """The recipe cut down to its mechanics.

    Raises:
        ConfigError: a recipe with a pretrained model says nothing of its shape.
    """
    stages = tuple(
        msgspec.structs.replace(stage, settings=kind_named(stage.kind).shrink(stage.settings))
        for stage in recipe.stages
    )
    pretrained = recipe.pretrained
    if pretrained is not None:
        plan = pretrained.rehearsal
        if plan is None:
            raise ConfigError(
                "the recipe has no [model.rehearsal]: its shape for a dry run is not known",
                remedy="add the table with `shape` and, without the model's files, `tokenizer`",
            )
        pretrained = msgspec.structs.replace(
            pretrained,
            shape=plan.shape,
            tokenizer=plan.tokenizer or pretrained.tokenizer,
            dtype=plan.dtype,
            gguf="" if plan.shape else pretrained.gguf,
            rehearsal=None,
        )
    return msgspec.structs.replace(
        recipe,
        stages=stages,
        pretrained=pretrained,
        data=DataConfig(longest=LONGEST),
        dry=True,
    )


def dry_run(
    recipe: Recipe,
    out: Path | None = None,
    *,
    report: Callable[[Step], None] | None = None,
    threads: int = 2,
) -> Trained:
    """Take every stage through its mechanics.

    Args:
        recipe: any recipe.
        out: folder to keep; None: nothing is kept.
        report: progress.
        threads: worker threads.

    Raises:
        ConfigError: see `rehearsed`.
    """
    small = rehearsed(recipe)
    with tempfile.TemporaryDirectory(prefix="palio-dry-") as scratch:
        folder = out if out is not None else Path(scratch) / "run"
        corpus, ground = _material(Path(scratch))
        options = Options(threads=threads, uncertified=True, report=report)
        return train(small, corpus, folder, ground=ground, options=options)


def _material(folder: Path) -> tuple[Path, Ground]:
    """A few rows of a scripted model, and problems to roll out."""
    made = synthesise(compact_config(0, products=300, problems=ROWS))
    world = World.build(made.catalogue, COMPACT)
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream(0)
    rows = [
        row_of(
            run_problem(agent, problem, world, driver=driver, upstream=upstream, tools=FOUR_TOOLS),
            "dry",
        )
        for problem in made.problems
    ]
    path = folder / "train.jsonl"
    write_lines(path, (to_json(row) + b"\n" for row in rows))
    problems = made.problems[:PROBLEMS]
    return path, Ground(problems, {problems[0].catalogue: world}, default_encoder())
