"""A number that no training can mean is refused by its name when the recipe is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from palio.records import ConfigError

if TYPE_CHECKING:
    from palio.train.recipe import Recipe


class Range(NamedTuple):
    """Where a setting has to lie; an end that is open is not part of it."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Whether it lies there; NaN lies nowhere."""
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.open_low else 'at least'} {self.low:g}"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"in {left}{self.low:g}, {self.high:g}{right}"


_NATURAL, _COUNT = Range(0), Range(1)
_SHARE, _BELOW_ONE = Range(0, 1), Range(0, 1, open_high=True)
_ABOVE = Range(0, open_low=True)

RANGES: dict[str, Range] = {
    "seed": Range(0, 2**32, open_high=True),  # numpy, which transformers seeds too, takes no more
    # what our own loop is told
    "tokens": _NATURAL,
    "batch": _COUNT,
    "warmup": _SHARE,
    "decay": _SHARE,
    "floor": _SHARE,
    "minutes": _NATURAL,
    "documents": _SHARE,
    "kinds": _NATURAL,
    "matrix_rate": _NATURAL,
    "matrix_momentum": _BELOW_ONE,
    "other_rate": _NATURAL,
    "other_betas": _BELOW_ONE,
    "weight_decay": _NATURAL,
    "clip": _NATURAL,
    # what TRL is told
    "num_train_epochs": _NATURAL,
    "max_steps": Range(-1),
    "learning_rate": _NATURAL,
    "warmup_ratio": _NATURAL,
    "per_device_train_batch_size": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "max_grad_norm": _NATURAL,
    "logging_steps": _COUNT,
    "save_steps": _COUNT,
    # rollouts
    "problems": _NATURAL,
    "samples": _COUNT,
    "temperature": _NATURAL,
    "top_p": Range(0, 1, open_low=True),
    "max_tokens": _NATURAL,
    "seconds": _ABOVE,
    "threads": _COUNT,
    "longest": Range(2),
    "turn_weight": _NATURAL,
    "outcome_weight": _NATURAL,
    "brevity": _NATURAL,
    "probe": _NATURAL,
    "probe_every": _COUNT,
    "watch": _NATURAL,
    # data and models
    "rows_a_problem": _NATURAL,
    "vocabulary": _COUNT,
    "hidden_size": _COUNT,
    "intermediate_size": _COUNT,
    "layers": _COUNT,
    "heads": _COUNT,
    "kv_heads": _COUNT,
    "head_dim": Range(2),
    "rope_theta": _ABOVE,
    "max_positions": Range(2),
    "sample": _COUNT,
    "parts": _COUNT,
    "rank": _COUNT,
    "alpha": _COUNT,
    "dropout": _BELOW_ONE,
}
"""Setting -> range, wherever in a recipe it stands; a kind may ask for more of its own."""


def check_recipe(recipe: Recipe, where: str) -> None:
    """Every number in a recipe is one that training can mean.

    Args:
        recipe: as it was read.
        where: its file.

    Raises:
        ConfigError: one is not; names the part and the setting.
    """
    parts = (("model", recipe.model or recipe.pretrained), ("data", recipe.data))
    stages = ((f"stage {stage.name!r}", stage.settings) for stage in recipe.stages)
    for what, part in (*parts, *stages):
        if part is not None:
            check_numbers(part, what, where)
    check_seed(recipe.seed, "seed", where)
    for stage in recipe.stages:
        what = f"stage {stage.name!r}: the recipe's seed + its"
        check_seed(recipe.seed + stage.settings.seed, what, where)
    model, longest = recipe.model, recipe.data.longest
    if model is not None and not model.start and longest > model.max_positions:
        raise ConfigError(
            f"data: rows of {longest} tokens are longer than the model's {model.max_positions} "
            "places",
            where=where,
            remedy="lower `longest`, or raise `max_positions` of [model]",
        )


def check_seed(seed: int, what: str, where: str = "") -> None:
    """Refuse a seed that some generator would refuse when hours of work are done.

    Raises:
        ConfigError: it is out of range.
    """
    if not RANGES["seed"].holds(seed):
        raise ConfigError(f"{what} = {seed}: it has to be {RANGES['seed']}", where=where)


def check_lengths(recipe: Recipe) -> None:
    """Every stage that is counted in tokens has some; a lab gives its recipe's stages theirs.

    Raises:
        ConfigError: one has none: it would make one update and call the weights trained.
    """
    for stage in recipe.stages if recipe.model is not None else ():
        if getattr(stage.settings, "tokens", 1) < 1:
            raise ConfigError(
                f"stage {stage.name!r} has no `tokens`: it would train on nothing",
                where=recipe.name,
                remedy="say how many tokens it is long",
            )


def check_numbers(record: msgspec.Struct, what: str, where: str) -> None:
    """Every number in a part of a recipe is one, and in its range.

    Args:
        record: the part; tables inside are looked at too.
        what: it is, for the message.
        where: file of the recipe.

    Raises:
        ConfigError: a number is not; names the setting.
    """
    for path, name, value in _numbers(record, "", ""):
        wanted = RANGES.get(name)
        if math.isfinite(value) and (wanted is None or wanted.holds(value)):
            continue
        told = f"; it has to be {wanted}" if wanted else ""
        raise ConfigError(
            f"{what}: `{path}` is {value}{told or ', which is no number to train with'}",
            where=where,
            remedy="correct it in the recipe",
        )


def _numbers(value: Any, path: str, name: str) -> Iterator[tuple[str, str, float]]:
    """Path, name and value of every number; a list or a table of names gives its own to each."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path, name, value
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            inside = f"{path}.{field}" if path else field
            yield from _numbers(getattr(value, field), inside, field)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, f"{path}.{key}", name)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from _numbers(part, path, name)
