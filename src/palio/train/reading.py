"""A recipe is read from TOML; what it cannot mean is refused before anything is trained."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from palio.records import ConfigError, PalioError, Record
from palio.train.ranges import check_recipe
from palio.train.recipe import DataConfig, PalioModel, PretrainedModel, Recipe, StageEntry
from palio.train.reporting import reports_to
from palio.train.settings import TrlSettings
from palio.train.stage import StageSettings
from palio.train.stages import KINDS, kind_named
from palio.train.unread import check_read

R = TypeVar("R")


def load_recipe(name: str) -> Recipe:
    """A bundled recipe by name, or a TOML file by path.

    Raises:
        ConfigError: no such recipe, or a setting in it that does not exist.
    """
    return read_recipe(_toml(name), where=name)


def _toml(name: str) -> dict[str, Any]:
    bundled = resources.files(__package__).joinpath("recipes", f"{name}.toml")
    try:
        file = bundled if bundled.is_file() else Path(name)
        text = file.read_text("utf-8-sig")  # editors of Windows begin a file with a mark
    except (OSError, ValueError) as error:  # a name with a zero byte, text that is no UTF-8
        raise ConfigError(
            f"no such recipe: {error}",
            where=name,
            remedy=f"name a TOML file, or: {', '.join(bundled_recipes())}",
        ) from error
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the recipe cannot be read: {error}", where=name) from error


def bundled_recipes() -> tuple[str, ...]:
    """Names of the recipes that ship with palio."""
    folder = resources.files(__package__).joinpath("recipes")
    names = (file.name for file in folder.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def read_recipe(raw: Mapping[str, Any], *, where: str = "") -> Recipe:
    """A recipe from plain data: keys name, seed, model, data, stage.

    Raises:
        ConfigError: an unknown key, a wrong type, a stage of an unknown kind, a name used twice, a
            chat template that cannot be kept to, a `report_to` that nobody knows, a setting that
            the stage does not read, a number that no training can mean.
        MissingDependencyError: what a `report_to` needs is not installed.
    """
    unknown = sorted(raw.keys() - {"name", "seed", "model", "data", "stage"})
    if unknown:
        raise ConfigError(f"the recipe has an unknown key {unknown[0]!r}", where=where)
    model = dict(_read(raw.get("model", {}), dict[str, Any], "model", where))
    backend = model.pop("backend", "palio")
    if backend not in ("palio", "transformers"):
        raise ConfigError(f"no backend is called {backend!r}", where=where)
    ours = backend == "palio"
    pretrained = None if ours else _read(model, PretrainedModel, "model", where)
    if pretrained is not None and pretrained.template:
        _check_template(pretrained.template)
    tables = _read(raw.get("stage", []), list[dict[str, Any]], "stage", where)
    made = Recipe(
        name=_read(raw.get("name", "recipe"), str, "name", where),
        seed=_read(raw.get("seed", 0), int, "seed", where),
        model=_read(model, PalioModel, "model", where) if ours else None,
        pretrained=pretrained,
        data=_read(raw.get("data", {}), DataConfig, "data", where),
        stages=_stages(tables, where, ours=ours if "model" in raw else None),
    )
    check_recipe(made, where)
    return made


def _check_template(named: str) -> None:
    from palio.train.backends.codec import template_text
    from palio.train.backends.templates import check_template

    try:
        check_template(template_text(named))
    except ConfigError as error:
        raise ConfigError(error.what, where=error.where or named, remedy=error.remedy) from error


def _stages(
    tables: Sequence[dict[str, Any]], where: str, *, ours: bool | None
) -> tuple[StageEntry, ...]:
    if not tables:
        raise ConfigError("the recipe has no stage", where=where, remedy="add a [[stage]] table")
    stages = []
    for number, table in enumerate(tables, start=1):
        at = f"stage {number}"
        rest = dict(table)
        name, kind = rest.pop("name", rest.get("kind", "")), rest.pop("kind", "")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError(
                f"{at} has the unknown kind {kind!r}",
                where=where,
                remedy=f"the kinds are {', '.join(KINDS)}",
            )
        rest = over_defaults(rest, kind_named(kind).settings)
        settings = _read(rest, kind_named(kind).settings, f"{at} ({name})", where)
        check_read(kind, str(name), settings, ours=ours, where=where or at)
        _check_reports(settings, where or at)
        stages.append(StageEntry(kind=kind, name=str(name), settings=settings))
    twice = [name for name, n in Counter(stage.name for stage in stages).items() if n > 1]
    if twice:
        raise ConfigError(f"two stages are called {twice[0]!r}", where=where, remedy="set `name`")
    bad = [stage.name for stage in stages if not stage.name.replace("-", "").isalnum()]
    if bad:
        raise ConfigError(
            f"a stage cannot be called {bad[0]!r}", where=where, remedy="letters, digits and -"
        )
    return tuple(stages)


def _check_reports(settings: StageSettings, where: str) -> None:
    """Before the hours of the stages before it."""
    try:
        reports_to(getattr(settings, "trl", TrlSettings()).report_to)
    except PalioError as error:
        raise type(error)(error.what, where=error.where or where, remedy=error.remedy) from error


def over_defaults(table: Mapping[str, Any], kind: type[StageSettings]) -> dict[str, Any]:
    """A stage's table whose own tables (trl, sampling, ...) change only what they name.

    The rest of such a table is the kind's default, which may be another than that of the table:
    KTO's rate is not SFT's.
    """
    merged = dict(table)
    for field in msgspec.structs.fields(kind):
        given = table.get(field.name)
        if isinstance(given, Mapping) and isinstance(field.default, Record):
            merged[field.name] = {**msgspec.to_builtins(field.default), **given}
    return merged


def _read(value: Any, kind: type[R], what: str, where: str) -> R:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the recipe cannot be read: {what}: {error}", where=where) from error
    except ConfigError as error:  # what a record says of itself does not know the file
        told = f"{what}: {error.what}"
        raise ConfigError(told, where=where or error.where, remedy=error.remedy) from error
