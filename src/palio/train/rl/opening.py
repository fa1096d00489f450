"""A checkpoint of the recipe's model, opened for training with rollouts."""

from __future__ import annotations

from pathlib import Path

from palio.records import ConfigError
from palio.train.rl.policy import OwnPolicy, Policy
from palio.train.stage import Context


def open_policy(context: Context, checkpoint: Path) -> Policy:
    """The checkpoint of the stage before, as what the recipe says it is.

    Raises:
        ConfigError: the recipe's model cannot be trained by this stage.
        InputError: the checkpoint cannot be read.
    """
    if context.recipe.model is not None:
        return OwnPolicy(checkpoint, threads=context.threads)
    raise ConfigError("this stage cannot train the recipe's model")
