"""A file of the world is written whole or not at all, and its manifest comes last."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from palio.records import Provenance, from_json, to_json

MANIFEST = "manifest.json"
_CHUNK = 1024 * 1024


DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""What the system says of a disk that takes no more: full, over a limit, broken, read-only."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """While open, a disk that takes no more says of which file; a write by itself does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK_ERRORS:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, synced to disk, only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines (ends included) atomically."""
    with replacing(path) as stream:
        stream.writelines(lines)


def write_manifest(manifest: Provenance, path: Path) -> None:
    """Write a manifest atomically; call it after everything that it describes."""
    write_lines(path, [to_json(manifest) + b"\n"])


def read_manifest(path: Path) -> Provenance | None:
    """The manifest at `path`, None where there is none.

    Raises:
        InputError: the file is not a manifest.
    """
    if not path.is_file():
        return None
    return from_json(path.read_bytes(), Provenance, where=str(path))


def file_digest(path: Path) -> str:
    """``sha256:<hex>`` of a file's bytes."""
    running = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            running.update(chunk)
    return "sha256:" + running.hexdigest()
