"""A setting that a stage does not read is refused when the recipe is read, not taken in silence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from palio.records import ConfigError
from palio.train.settings import SftSettings, TrlSettings
from palio.train.stage import StageSettings

_LOOP = ("tokens", "batch", "warmup", "decay", "floor", "minutes", "optimiser")
_DOCUMENTS = ("documents", "kinds")
_TOLD = ("report_to", "extra", "launch")
"""Of `trl`, what our own loop reads; `launch` has an error of its own (`recipe.Recipe`)."""
_OURS = tuple(f"trl.{n}" for n in TrlSettings.__struct_fields__ if n not in _TOLD)

UNREAD: dict[str, tuple[str, ...]] = {
    "base": ("documents",),
    "rejection": _DOCUMENTS,
    "teacher": _DOCUMENTS,
    "distill": ("trl.packing",),
    "kto": ("trl.packing",),
    "grpo": ("trl.packing",),
}
"""Kind of stage -> settings that it has and does not read, by their path."""


def unread(kind: str, settings: StageSettings, *, ours: bool | None) -> tuple[str, ...]:
    """The settings that a stage of a kind does not read, whatever they are.

    Args:
        kind: of the stage.
        settings: of that kind.
        ours: whether a model of palio's own is trained, by our loop; None: nobody knows yet.
    """
    found = UNREAD.get(kind, ())
    if isinstance(settings, SftSettings):
        if ours is not None:
            found += _OURS if ours else (*_LOOP, *_DOCUMENTS)
        if kind == "sft" and not settings.documents:
            found += ("kinds",)
    return tuple(dict.fromkeys(found))


def check_read(
    kind: str, name: str, settings: StageSettings, *, ours: bool | None, where: str
) -> None:
    """Every setting that is not the kind's default is read by the stage.

    Raises:
        ConfigError: one is not; names it.
    """
    default = type(settings)()
    lost = [
        path
        for path in unread(kind, settings, ours=ours)
        if _at(settings, path.split(".")) != _at(default, path.split("."))
    ]
    if lost:
        model = "" if ours is None else f", {'from scratch' if ours else 'pretrained'}"
        raise ConfigError(
            f"stage {name!r} ({kind}{model}) does not read `{lost[0]}`",
            where=where,
            remedy="take it out of the recipe",
        )


def _at(record: msgspec.Struct, path: Iterable[str]) -> Any:
    found: Any = record
    for name in path:
        found = getattr(found, name)
    return found
