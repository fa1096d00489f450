"""What a stage of a chain can never do is told before the first stage, not after hours of others.

Looked at is what is known by then: the settings, and which packages and programs are here. Whether
a server answers, and with which weights, is asked when its stage begins: the student's own is often
started between two stages.
"""

from __future__ import annotations

from collections.abc import Iterable

from palio.broker.upstream import HttpUpstream
from palio.records import ConfigError, PalioError
from palio.train.backends.arguments import check_sft
from palio.train.backends.launch import check_launcher
from palio.train.recipe import Recipe, StageEntry
from palio.train.settings import SftSettings, TrlSettings
from palio.train.stage import Keys
from palio.train.stages import kind_named


def check_chain(recipe: Recipe, where: str, *, grounded: bool) -> None:
    """The stages of a recipe can follow each other, with what the run was given.

    Args:
        recipe: the whole of it.
        where: its file, for the message.
        grounded: whether there are training problems.

    Raises:
        ConfigError: a stage needs training problems, or a checkpoint before it.
    """
    first = recipe.stages[0]
    ours = recipe.model is not None and not recipe.model.start
    if ours and not kind_named(first.kind).first:
        raise ConfigError(
            f"stage {first.name!r} needs a checkpoint before it",
            where=where,
            remedy="put a base or an sft stage first",
        )
    for stage in recipe.stages:
        if kind_named(stage.kind).runs_problems(stage.settings) and not grounded:
            raise ConfigError(
                f"stage {stage.name!r} rolls out training problems, and there are none",
                where=where,
                remedy="name them with --suite and --catalogue",
            )


def check_stages(
    stages: Iterable[StageEntry], where: str, *, keys: Keys, pretrained: bool = False
) -> None:
    """What stages ask for is here, as far as that can be known before any of them begins.

    Args:
        stages: those that are not finished.
        where: file that they stand in, for the message.
        keys: bearer tokens for their servers.
        pretrained: whether TRL trains what our own loop would.

    Raises:
        ConfigError: an address that nothing can be asked at, or settings that its server, its
            processes or TRL cannot be used with.
        MissingDependencyError: a package or a launcher is not installed.
    """
    for stage in stages:
        try:
            _check(stage, keys, pretrained=pretrained)
        except PalioError as error:
            place = f"{error.where}: " if error.where else ""
            told = f"stage {stage.name!r}: {place}{error.what}"
            raise type(error)(told, where=where, remedy=error.remedy) from error


def _check(stage: StageEntry, keys: Keys, *, pretrained: bool) -> None:
    kind = kind_named(stage.kind)
    endpoint = kind.asks(stage.settings, None)
    if endpoint is not None:
        asked = HttpUpstream(endpoint.base_url, keys.of(endpoint))  # it refuses what it could not
        asked.close()
    launch = getattr(stage.settings, "trl", TrlSettings()).launch
    if launch:
        check_launcher(launch)
    if pretrained and isinstance(stage.settings, SftSettings):
        check_sft(stage.settings.trl)
    kind.needs(stage.settings)
