"""A recipe is one TOML file; its digest stands in every artefact that it makes."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from palio.records import ConfigError, Record
from palio.train.loop import StageConfig
from palio.train.model import ModelConfig


class BaseConfig(StageConfig, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """The first stage.

    Attributes:
        documents: kind of document -> weight, see `documents.Author`.
    """

    documents: dict[str, float] = {}


class SftConfig(StageConfig, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """The second stage.

    Attributes:
        documents: share of the batches that are documents of the base.
    """

    documents: float = 0.0


class Recipe(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """All choices of a training run but the corpus.

    Attributes:
        seed: of weights, documents and order; the stages' own seeds are added to it.
        parts: parts of a batch, worked on at the same time where there are cores.
        sample: conversations that vocabulary and documents are made from.
        vocabulary: entries of the tokenizer, at most.
        longest: tokens; a longer trajectory is left out and counted.
        rows_a_problem: rows of one problem that are trained on, those with the most thinking first;
            0: all. A model that must guess how much of its work to show learns less from the same
            tokens: trained on careful and terse rows it solved 62 % of the problems of a new
            catalogue, on one row a problem 87 % (n = 300, 4.1 M tokens each, one seed).
        lay_out: start with heads that can copy (`heads`); False: random weights.
    """

    name: str
    base: BaseConfig
    sft: SftConfig
    model: ModelConfig = ModelConfig()
    seed: int = 0
    parts: int = 2
    sample: int = 3000
    vocabulary: int = 1024
    longest: int = 1000
    rows_a_problem: int = 0
    lay_out: bool = True


def load_recipe(name: str) -> Recipe:
    """A bundled recipe by name, or a TOML file by path.

    Raises:
        ConfigError: no such recipe, or a setting in it that does not exist.
    """
    bundled = resources.files(__package__).joinpath("recipes", f"{name}.toml")
    path = Path(name)
    try:
        text = bundled.read_text("utf-8") if bundled.is_file() else path.read_text("utf-8")
        raw: dict[str, Any] = tomllib.loads(text)
        return msgspec.convert(raw, Recipe)
    except OSError as error:
        raise ConfigError(
            f"no such recipe: {error}", where=name, remedy="name a TOML file, or: tiny"
        ) from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the recipe cannot be read: {error}", where=name) from error


def shortened(recipe: Recipe, minutes: float) -> Recipe:
    """The recipe with its time limits set so that both stages together take `minutes`."""
    total = recipe.base.tokens + recipe.sft.tokens
    return msgspec.structs.replace(
        recipe,
        base=msgspec.structs.replace(recipe.base, minutes=minutes * recipe.base.tokens / total),
        sft=msgspec.structs.replace(recipe.sft, minutes=minutes * recipe.sft.tokens / total),
    )
