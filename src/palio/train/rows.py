"""What was trained on, token by token and mask by mask, has one digest; manifests tell it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palio.train.checkpoint import CHECKPOINT, MANIFEST
from palio.train.codec import Codec
from palio.train.context import Source
from palio.world.artefacts import read_manifest

TEMPLATE, ROWS = "template", "rows"
"""Names in a checkpoint's manifest: digest of the chat template, and of every id and mask."""


def rows_digest(sources: Sequence[Source]) -> str:
    """Digest of every id and every mask that is trained on, in order."""
    running = hashlib.sha256()
    for source in sources:
        running.update(f"{source.name}:{len(source.examples)};".encode())
        for ids, targets in source.examples:
            running.update(repr((ids, targets)).encode())
    return "sha256:" + running.hexdigest()


def plain_digest(rows: Iterable[Sequence[Any]]) -> str:
    """Digest of rows of plain values in order: ids, masks, and what else decides a row's loss."""
    running = hashlib.sha256()
    for row in rows:
        running.update(repr(tuple(row)).encode())
    return "sha256:" + running.hexdigest()


def trained_on(inputs: Mapping[str, str], codec: Codec, rows: str) -> dict[str, str]:
    """A checkpoint's inputs, with what the model read and was trained on.

    Args:
        inputs: of the stage.
        codec: that the rows were made with.
        rows: their digest.
    """
    return {**inputs, TEMPLATE: codec.template_digest, ROWS: rows}


def told_digests(stage: Path) -> dict[str, str]:
    """The digests of template and rows that a finished stage's checkpoint tells, if it does."""
    manifest = read_manifest(stage / CHECKPOINT / MANIFEST)
    inputs = manifest.inputs if manifest else {}
    return {name: inputs[name] for name in (TEMPLATE, ROWS) if name in inputs}
