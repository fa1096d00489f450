"""Whatever is trained has 32 bits: in 16, what AdamW adds at a rate of 1e-5 is rounded away.

Half of the distance between two bfloat16 numbers near 0.02, a usual weight, is 6e-5.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from palio.records import ConfigError
from palio.train.backends.carried import is_low
from palio.train.recipe import Recipe
from palio.train.settings import TrlSettings

_REMEDY = (
    'say dtype = "float32" in [model] and bf16 = true in [stage.trl]: products are as fast, and '
    "weights add up; or train an adapter ([model.lora]), or launch with FSDP or DeepSpeed, which "
    "keep float32 weights for themselves"
)


def check_masters(recipe: Recipe) -> None:
    """Refuse all weights in 16 bits, trained in this process; a dry run learns nothing anyway.

    Raises:
        ConfigError: a stage would do so.
    """
    model = recipe.pretrained
    if model is None or model.lora is not None or recipe.dry or not is_low(model.dtype):
        return
    for stage in recipe.stages:
        if not getattr(stage.settings, "trl", TrlSettings()).launch:
            raise ConfigError(
                f"stage {stage.name!r} would train all weights in {model.dtype}: what a step adds "
                "is smaller than what they can tell apart, and is lost",
                remedy=_REMEDY,
            )


def check_launched(model: nn.Module) -> None:
    """The same in a launched process, when training begins and it is known who has the weights.

    Raises:
        ConfigError: weights in training have 16 bits, and nobody keeps others for them.
    """
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    if alone or getattr(AcceleratorState(), "deepspeed_plugin", None) is not None:
        return
    trained: list[Any] = [weight for weight in model.parameters() if weight.requires_grad]
    low = sum(weight.dtype.itemsize < 4 for weight in trained)
    if low:
        raise ConfigError(
            f"{low} weights would be trained in 16 bits: what a step adds is lost",
            remedy=_REMEDY,
        )
