"""A stage goes on with the inputs that it began with, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from palio.rollout.config import FILE
from palio.world.artefacts import read_manifest

TEACHER = ("teacher", "teacher_config", "teacher_package", "teacher_revision")
"""What a distillation's teacher is (`rl.opening.teacher_digests`)."""
WORLDS = "worlds"
"""What a stage rolls out in: products and how worlds show them, which problems only name."""
LATER = {"model", "template", "revision", "tokenizer", WORLDS, *TEACHER}
"""Inputs that are held since runs were published: a stage that began without them is not."""
SPENT = {"revision", "tokenizer", WORLDS, *TEACHER}
"""Inputs that a finished stage does not need again: where they are gone they contradict nothing."""


def held_inputs(folder: Path, inputs: Mapping[str, str], *, finished: bool) -> dict[str, str]:
    """The inputs that a stage is held to: not its recipe, and not what an older run did not note.

    Args:
        folder: of the stage.
        inputs: name -> digest of all that it reads now.
        finished: whether it is.
    """
    begun = read_manifest(folder / FILE)
    then: dict[str, str] | None = begun.config["inputs"] if begun is not None else None
    held = {
        name: told
        for name, told in inputs.items()
        if name != "recipe" and (then is None or name in then or name not in LATER)
    }
    if then is not None and finished:
        held |= {name: then[name] for name in SPENT & (then.keys() - held.keys())}
    return held
