"""What a recipe hands through to TRL is what TRL takes; names are asked for before any stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from difflib import get_close_matches
from typing import Any, TypeVar

from palio.records import ConfigError, MissingDependencyError
from palio.train.settings import TrlSettings

C = TypeVar("C")
_EVALUATED = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow the loss on rows apart, of which no stage has any."""
_REMEDY = "correct [stage.trl] and its `extra` in the recipe"


def configured(kind: Callable[..., C], fields: Mapping[str, Any], stage: str) -> C:
    """A configuration of TRL's.

    Raises:
        ConfigError: it has no such field, or does not take its value.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"TRL does not take the settings of stage {stage!r}: {error}",
            remedy=_REMEDY,
        ) from error


def check_taken(kind: type[Any], trl: TrlSettings) -> None:
    """Names that a recipe hands through are known to TRL; for before any stage begins.

    Its configuration is not built for that: building one takes the device and tells transformers of
    FSDP and DeepSpeed, for the stages before as well. What it thinks of the values of `extra` it
    says when the stage begins (`configured`).

    Args:
        kind: TRL's configuration class of the stage.
        trl: of the recipe.

    Raises:
        ConfigError: the class has no such field, or there is no such schedule or optimiser.
    """
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    unknown = sorted(trl.extra.keys() - {field.name for field in fields_of(kind)})
    if unknown:
        raise ConfigError(f"{kind.__name__} of TRL has no field {unknown[0]!r}", remedy=_REMEDY)
    schedules = [each.value for each in SchedulerType if each.value not in _EVALUATED]
    optimisers = [each.value for each in OptimizerNames]
    for name, value, known in (
        ("lr_scheduler_type", trl.lr_scheduler_type, schedules),
        ("optim", trl.extra.get("optim", optimisers[0]), optimisers),
    ):
        if value not in known:
            near = get_close_matches(str(value), known, 3, 0.0)
            raise ConfigError(
                f"no stage can be trained with `{name}` = {value!r}",
                remedy=f"name another one, e.g. {' or '.join(near)}",
            )


def check_sft(trl: TrlSettings) -> None:
    """`check_taken` of a stage that TRL's SFT trains.

    Raises:
        ConfigError: see there.
        MissingDependencyError: TRL, PEFT or accelerate is not installed.
    """
    check_packages()
    from trl import SFTConfig  # type: ignore[attr-defined]

    check_taken(SFTConfig, trl)


def check_packages() -> None:
    """What pretrained models are trained with is here.

    Raises:
        MissingDependencyError: trl, peft or accelerate is not installed.
    """
    try:
        import accelerate  # type: ignore[import-untyped]  # noqa: F401
        import peft  # noqa: F401
        import trl  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"pretrained models need {error.name}", remedy="pip install 'palio[train]'"
        ) from error
