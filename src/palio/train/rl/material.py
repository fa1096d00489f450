"""Training problems and their worlds in a folder: other processes roll out the very same ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from palio.judging.encoders import TitleEncoder, default_encoder, minilm_encoder
from palio.records import ConfigError, IntegrityError, Problem, Record, from_json, to_json
from palio.train.ground import Ground, Worlds
from palio.world.catalogue import read_catalogue, write_catalogue
from palio.world.documents import write_documents
from palio.world.web import DocumentIndex
from palio.world.world import World, WorldConfig

GROUND, FILE = "ground", "ground.json"
"""The folder in a stage's, and the file in it that is written last."""


class Place(Record, frozen=True):
    """One world.

    Attributes:
        folder: of its catalogue, in the folder of the ground.
        digest: of the world.
    """

    folder: str
    config: WorldConfig
    digest: str


class Material(Record, frozen=True):
    """A `Ground` as it is written.

    Attributes:
        encoder: id of the scorer's title encoder.
        worlds: catalogue id -> its place.
    """

    problems: tuple[Problem, ...]
    tools: tuple[str, ...]
    encoder: str
    worlds: dict[str, Place]


def write_ground(ground: Ground, folder: Path) -> None:
    """Write the problems with their worlds, in the place of an earlier one.

    Raises:
        ConfigError: a world or the scorer is of a kind that only this process has.
    """
    _encoder(ground.encoder.encoder_id)
    shutil.rmtree(folder, ignore_errors=True)
    named = sorted({problem.catalogue for problem in ground.problems})
    worlds = {
        name: _write_world(ground.worlds[name], folder, f"world-{number}")
        for number, name in enumerate(named)
    }
    made = Material(ground.problems, ground.tools, ground.encoder.encoder_id, worlds)
    (folder / FILE).write_bytes(to_json(made))


def _write_world(world: World, folder: Path, name: str) -> Place:
    if world.web is not None and not isinstance(world.web, DocumentIndex):
        raise ConfigError(
            "a live web search cannot be given to other processes",
            remedy="take `launch` out, or roll out in worlds with documents of their own",
        )
    write_catalogue(world.catalogue, folder / name)
    if isinstance(world.web, DocumentIndex):
        write_documents(world.web.documents, folder / name)
    return Place(name, world.config, world.digest)


def read_ground(folder: Path) -> Ground:
    """What `write_ground` wrote; a world is built when it is first asked for.

    Raises:
        IntegrityError: a world is not the one that was written, when it is asked for.
    """
    path = folder / FILE
    found = from_json(path.read_bytes(), Material, where=str(path))
    makers: Mapping[str, Callable[[], World]] = {
        name: partial(_read_world, folder, name, place) for name, place in found.worlds.items()
    }
    return Ground(found.problems, Worlds(makers), _encoder(found.encoder), found.tools)


def _read_world(folder: Path, name: str, place: Place) -> World:
    catalogue, _ = read_catalogue(folder / place.folder, catalogue_id=name)
    world = World.build(catalogue, place.config)
    if world.digest != place.digest:
        raise IntegrityError(
            "a world is not the one that was written",
            where=str(folder / place.folder),
            remedy="run the same again: it is written anew",
        )
    return world


def _encoder(encoder_id: str) -> TitleEncoder:
    """The encoder with this id, made anew.

    Raises:
        ConfigError: it is neither of the two that need no file of the user's.
    """
    default = default_encoder()
    if encoder_id == default.encoder_id:
        return default
    if encoder_id.startswith("minilm-"):
        found = minilm_encoder()
        if found.encoder_id == encoder_id:
            return found
    raise ConfigError(
        f"the title encoder {encoder_id!r} cannot be given to other processes",
        remedy="take `launch` out, or score with --encoder lexical or minilm",
    )
