"""Weights come from somewhere: each is followed to the run that made it, or told as not known.

A run begins with weights of a checkpoint, of a public model, or with none; the teacher of a
distillation is other weights again. What a finished stage noted of them is held against what lies
there now, so that a checkpoint that was trained again in the same place is not taken for the one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from palio.records import MissingDependencyError, PalioError, Provenance
from palio.train.backends.weights import PACKAGE, files_digest, located
from palio.train.checkpoint import BUNDLED, MANIFEST, check_whole, checkpoint_folder
from palio.train.recipe import PretrainedModel
from palio.train.run import CHAIN, DONE
from palio.train.serving import weights_digest
from palio.world.artefacts import file_digest, read_manifest

Role = Literal["start", "teacher"]
Known = Literal["run", "public", "unknown"]
_PUBLIC = "of the hub or a package: what it was pre-trained on cannot be known here"


class Weights(NamedTuple):
    """What a run began with, or was taught by.

    Attributes:
        role: which of the two.
        stage: that read them.
        named: as the recipe does.
        known: `run`: a run made them, which is here; `public`: a model of the hub or of a package;
            `unknown`: anything else.
        why: no run is known, in words.
        run: folder of the run.
        last: stage of that run whose checkpoint they are.
    """

    role: Role
    stage: str
    named: str
    known: Known
    why: str = ""
    run: Path = Path()
    last: str = ""


def weights_of(run: Path, chain: Provenance, last: str = "") -> Iterator[Weights]:
    """The weights that the stages of a run read, but for those that one has of the one before.

    Args:
        run: its folder.
        chain: its manifest.
        last: stage up to which it is looked at; "": all that are finished.
    """
    stages = stages_of(run, chain, last)
    if not stages:
        return
    first = stages[0]["name"]
    start = (chain.config.get("model") or {}).get("start", "")
    if start:
        yield _followed(Weights("start", first, start, "unknown"), run, "checkpoint", _manifest)
    pretrained = chain.config.get("pretrained")
    if pretrained:
        files = lambda _: files_digest(msgspec.convert(pretrained, PretrainedModel))  # noqa: E731
        yield _named(Weights("start", first, pretrained["path"], "unknown"), run, "model", files)
    for stage in stages:
        if stage["kind"] == "distill" and stage.get("teacher"):
            found = Weights("teacher", stage["name"], stage["teacher"], "unknown")
            yield _named(found, run, "teacher", weights_digest)


def stages_of(run: Path, chain: Provenance, last: str = "") -> list[dict[str, Any]]:
    """The finished stages of a run, as its recipe has them, up to the one called `last`."""
    found = []
    for stage in chain.config["stages"]:
        if (run / stage["name"] / DONE).is_file():
            found.append(stage)
        if stage["name"] == last:
            break
    return found


def _manifest(folder: Path) -> str:
    return file_digest(folder / MANIFEST)


def _named(found: Weights, run: Path, note: str, now: Callable[[Path], str]) -> Weights:
    """A folder, or what cannot be one: a name of the hub, or of a package with a model in it."""
    try:
        place = Path(located(found.named))
    except MissingDependencyError:
        return found._replace(known="public", why=_PUBLIC)
    packed = found.named.startswith(PACKAGE) and not (place / MANIFEST).is_file()
    local = place == Path(BUNDLED) or place.is_dir() or note in _noted(run, found.stage)
    if packed or not local:
        return found._replace(known="public", why=_PUBLIC)
    return _followed(found, run, note, now, place)


def _followed(
    found: Weights,
    run: Path,
    note: str,
    now: Callable[[Path], str],
    place: Path | None = None,
) -> Weights:
    """A checkpoint, with the run that made it, or with why none is known."""
    try:
        folder = checkpoint_folder(place or Path(found.named)).resolve()
        why = _strange(folder, _noted(run, found.stage).get(note, ""), now)
    except PalioError as error:
        why = error.what
    return found._replace(why=why) if why else _made(found, folder)


def _strange(folder: Path, noted: str, now: Callable[[Path], str]) -> str:
    """Why a checkpoint cannot be taken for the one that a stage read; "" where it can."""
    if not folder.is_dir():
        return "it does not lie there any more"
    if not (folder / MANIFEST).is_file():
        return "it has no manifest: no run of palio tells how it was made"
    if not noted:
        return "the stage noted no digest of it"
    if now is not _manifest:
        check_whole(folder)
    return "" if now(folder) == noted else "what lies there now is not what the stage read"


def _made(found: Weights, folder: Path) -> Weights:
    made = folder.parent
    chain, done = read_manifest(made.parent / CHAIN), read_manifest(made / DONE)
    if chain is None or done is None:
        return found._replace(why="the run that made it does not lie around it")
    if _manifest(folder) not in done.outputs.values():
        return found._replace(why="it is not the checkpoint of the stage that it lies in")
    if chain.config.get("dry"):
        return found._replace(why="a dry run made it, of rows that are gone")
    return found._replace(known="run", run=made.parent, last=made.name)


def _noted(run: Path, stage: str) -> Mapping[str, str]:
    """Name -> digest of what a finished stage read."""
    done = read_manifest(run / stage / DONE)
    return done.inputs if done is not None else {}
