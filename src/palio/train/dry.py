"""A dry run takes every stage of a recipe through its mechanics in minutes; it shows no result.

Weights are random and cut down to few layers of the real width, problems are a handful of a small
synthetic world, rows are a scripted model's, any rollout counts as good enough to train on, and
every stage makes a step or two. What it proves is that the stages of this recipe work together on
this machine, at this shape, with this tokenizer. Everything that it writes says `dry`.

A token costs most in the vocabulary: with Qwen3's 151,936 entries at width 2560 one core needs
33 ms for each place of a row, forward and backward, whatever the number of layers (TRL's tiles:
every place is scored, and its logits are made twice). So rows are the shortest ones, two tools
stand in their prompts, and a step has one batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from palio.world.tools import SEVEN_TOOLS
from palio.world.world import COMPACT, World

PROBLEMS, ROWS, SHORTEST = 6, 30, 4
LONGEST = 3000
"""Tokens; a step's row of the 4B rehearsal has under 1,000 in Qwen3's vocabulary."""
TOOLS = ("find_product", "recommend_product")
"""Told to a pretrained policy, in rows and rollouts alike; all seven would be 1,500 tokens of each.

A model of ours is shown no list of tools, and its documents are made of details that one shows."""


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
        stages = tuple(
            msgspec.structs.replace(stage, settings=_brief(stage.settings)) for stage in stages
        )
    return msgspec.structs.replace(
        recipe,
        stages=stages,
        pretrained=pretrained,
        data=DataConfig(longest=LONGEST),
        dry=True,
    )


def _brief(settings: Any) -> Any:
    """One batch a step, where a batch is dear; a GRPO step is one group then."""
    trl = msgspec.structs.replace(settings.trl, gradient_accumulation_steps=1)
    fewer: dict[str, Any] = {"groups": 1} if hasattr(settings, "groups") else {}
    return msgspec.structs.replace(settings, trl=trl, **fewer)


def dry_run(
    recipe: Recipe,
    out: Path | None = None,
    *,
    report: Callable[[Step], None] | None = None,
    threads: int = 2,
    redo: bool = False,
) -> Trained:
    """Take every stage through its mechanics.

    Args:
        recipe: any recipe.
        out: folder to keep; None: nothing is kept.
        report: progress.
        threads: worker threads.
        redo: do a changed stage of a kept folder and all after it again.

    Raises:
        ConfigError: see `rehearsed`.
        ResumeError: without `redo`, a stage in the folder was made from other settings.
    """
    small = rehearsed(recipe)
    with tempfile.TemporaryDirectory(prefix="palio-dry-") as scratch:
        folder = out if out is not None else Path(scratch) / "run"
        ours = small.pretrained is None
        count, tools = (ROWS, SEVEN_TOOLS) if ours else (SHORTEST, TOOLS)
        corpus, ground = _material(Path(scratch), count, tools)
        options = Options(threads=threads, redo=redo, uncertified=True, report=report)
        return train(small, corpus, folder, ground=ground, options=options)


def _material(folder: Path, count: int, tools: tuple[str, ...]) -> tuple[Path, Ground]:
    """The shortest rows of a scripted model, and problems to roll out."""
    made = synthesise(compact_config(0, products=300, problems=ROWS))
    world = World.build(made.catalogue, COMPACT)
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream(0)
    rows = [
        row_of(
            run_problem(agent, problem, world, driver=driver, upstream=upstream, tools=tools),
            "dry",
        )
        for problem in made.problems
    ]
    path = folder / "train.jsonl"
    lines = sorted((to_json(row) + b"\n" for row in rows), key=len)
    write_lines(path, lines[:count])
    problems = made.problems[:PROBLEMS]
    return path, Ground(problems, {problems[0].catalogue: world}, default_encoder(), tools)
