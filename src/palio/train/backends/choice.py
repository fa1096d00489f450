"""How a recipe's model is trained and served: by our own loop, or by TRL over transformers."""

from __future__ import annotations

from palio.records import ConfigError
from palio.train.context import Backend
from palio.train.recipe import Recipe


def backend_of(recipe: Recipe) -> Backend:
    """The backend of a recipe's model.

    Raises:
        MissingDependencyError: a package that the backend or a stage needs is not installed.
        ConfigError: a stage has `deepspeed` and no `launch`, or would train 16-bit weights.
    """
    if recipe.model is not None:
        from palio.train.backends.loop import LoopBackend

        return LoopBackend(recipe.model)
    if recipe.pretrained is not None:
        from palio.train.backends.masters import check_masters
        from palio.train.backends.pretrained import PretrainedBackend
        from palio.train.settings import TrlSettings, check_deepspeed

        for stage in recipe.stages:
            check_deepspeed(getattr(stage.settings, "trl", TrlSettings()), stage.name)
        check_masters(recipe)
        return PretrainedBackend(recipe.pretrained)
    raise ConfigError("the recipe has no model")
