"""A corpus is made in a hidden folder beside its place, so that nobody ever reads half of one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(out: Path, name: str) -> Iterator[Path]:
    """A hidden folder `name` in `out` in which everything is made; gone in the end."""
    out.mkdir(parents=True, exist_ok=True)
    stage = out / name
    shutil.rmtree(stage, ignore_errors=True)  # left by a run that was killed
    stage.mkdir()
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
