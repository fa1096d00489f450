"""What was trained on, token by token and mask by mask, has one digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from palio.train.backend import Source


def rows_digest(sources: Sequence[Source]) -> str:
    """Digest of every id and every mask that is trained on, in order."""
    running = hashlib.sha256()
    for source in sources:
        running.update(f"{source.name}:{len(source.examples)};".encode())
        for ids, targets in source.examples:
            running.update(repr((ids, targets)).encode())
    return "sha256:" + running.hexdigest()
