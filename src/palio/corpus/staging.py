"""A corpus is made in a hidden folder in its place, so that nobody ever reads half of one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from palio import __version__
from palio.corpus.config import CorpusConfig
from palio.records import InputError, Provenance
from palio.world.artefacts import MANIFEST, file_digest, naming, read_manifest


@contextmanager
def staged(out: Path, name: str) -> Iterator[Path]:
    """A hidden folder `name` in `out` in which everything is made; gone in the end.

    What is written there by libraries does not say of which file a full disk is: `out` is named.
    """
    out.mkdir(parents=True, exist_ok=True)
    stage = out / name
    shutil.rmtree(stage, ignore_errors=True)  # left by a run that was killed
    stage.mkdir()
    try:
        with naming(out):
            yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def publish(stage: Path, out: Path) -> None:
    """Move the files into place; without a manifest in between, so nobody reads half of each.

    Files of an older corpus that this one does not have go: they would belong to no manifest.
    """
    try:
        older = read_manifest(out / MANIFEST)
    except InputError:
        older = None
    (out / MANIFEST).unlink(missing_ok=True)
    for name in older.outputs if older else ():
        if Path(name).name == name:
            (out / name).unlink(missing_ok=True)
    for path in sorted(stage.iterdir()):
        path.replace(out / path.name)


def corpus_manifest(
    stage: Path, config: CorpusConfig, counts: dict[str, int], inputs: dict[str, str]
) -> Provenance:
    """What the finished files of `stage` are made of, to be written when they are in place."""
    return Provenance(
        kind="corpus",
        tool_version=__version__,
        config=msgspec.to_builtins(config),
        config_digest=config.digest(),
        inputs=inputs,
        outputs={path.name: file_digest(path) for path in sorted(stage.iterdir())},
        counts=counts,
    )
