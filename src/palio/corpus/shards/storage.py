"""Inputs and outputs lie in a folder or at an fsspec URL; nothing half-written has a final name.

A local file is written beside its place, synced and renamed. An object store has no rename that
replaces at once, and needs none: an object appears whole when its upload ends. In both the manifest
of a shard comes last, so a shard without one does not count.
"""

from __future__ import annotations

import fcntl
import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from palio.corpus.readers.sources import sort_out
from palio.records import InputError, MissingDependencyError

SUFFIXES = (".jsonl", ".ndjson", ".json")
_PACKED = (".zst", ".gz")
_COPY = 8 << 20


def is_url(name: str) -> bool:
    """Whether a name is an fsspec URL; `file://` is one too."""
    return "://" in name


def _remote(name: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            "object storage needs fsspec", where=name, remedy="pip install 'palio[scale]'"
        ) from error
    try:
        return fsspec.core.url_to_fs(name)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise MissingDependencyError(
            f"no file system for this URL: {error}", where=name, remedy="pip install 'palio[scale]'"
        ) from error


def inputs_of(names: list[str]) -> tuple[str, ...]:
    """The trace files that names stand for: files, folders, patterns and URLs of those, sorted.

    What lies beside traces in a folder is passed over, as `palio corpus import` does.

    Raises:
        InputError: a name stands for nothing.
    """
    found: list[str] = []
    for name in names:
        matches = _matches_at(name) if is_url(name) else _matches(name)
        if not matches:
            raise InputError(
                "no trace files here", where=name, remedy=f"wanted: {', '.join(SUFFIXES)}"
            )
        found += matches
    return tuple(dict.fromkeys(found))


def _matches(name: str) -> list[str]:
    path = Path(name)
    if path.is_file():
        return [name]
    if path.is_dir():
        below = (p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        return [str(path / each) for each in sort_out(below)[0] if _is_trace(each)]
    return sorted(m for m in glob.glob(name, recursive=True) if Path(m).is_file())  # noqa: PTH207


def _matches_at(name: str) -> list[str]:
    system, path = _remote(name)
    if any(mark in path for mark in "*?["):
        return sorted(system.unstrip_protocol(p) for p in system.glob(path))
    if system.isdir(path):
        below = (found.removeprefix(path).lstrip("/") for found in system.find(path))
        read = (each for each in sort_out(below)[0] if _is_trace(each))
        return [system.unstrip_protocol(f"{path.rstrip('/')}/{each}") for each in read]
    return [system.unstrip_protocol(path)] if system.exists(path) else []


def _is_trace(name: str) -> bool:
    """Whether a shard can be made of a file of that name; Parquet is no text of lines."""
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name.endswith(SUFFIXES)


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The bytes of an input.

    Raises:
        OSError: it cannot be read.
    """
    if is_url(name):
        system, path = _remote(name)
        with system.open(path, "rb", block_size=_COPY) as stream:
            yield stream
    else:
        with Path(name).open("rb") as stream:
            yield stream


class Folder:
    """Where the output of shards lies: a local folder, made by the first file, or an fsspec URL."""

    def __init__(self, name: str) -> None:
        self.name = name.rstrip("/")
        self._remote = is_url(name)

    def at(self, file: str) -> str:
        """The full name of a file."""
        return f"{self.name}/{file}"

    def read(self, file: str) -> bytes | None:
        """The bytes of a small file, None where there is none."""
        try:
            with opened(self.at(file)) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def size(self, file: str) -> int | None:
        """The bytes that a file has, None where there is none."""
        try:
            if not self._remote:
                return Path(self.at(file)).stat().st_size
            system, path = _remote(self.at(file))
            system.invalidate_cache()
            return int(system.info(path)["size"])
        except FileNotFoundError:
            return None

    def names(self) -> tuple[str, ...]:
        """The files of the folder, sorted."""
        if not self._remote:
            return tuple(sorted(p.name for p in Path(self.name).glob("*") if p.is_file()))
        system, path = _remote(self.name)
        system.invalidate_cache()
        if not system.isdir(path):
            return ()
        return tuple(sorted(p.rsplit("/", 1)[-1] for p in system.ls(path, detail=False)))

    def remove(self, file: str) -> None:
        """Remove a file if it is there."""
        if not self._remote:
            Path(self.at(file)).unlink(missing_ok=True)
            return
        system, path = _remote(self.at(file))
        try:
            system.rm_file(path)
        except FileNotFoundError:
            return

    @contextmanager
    def writing(self, file: str) -> Iterator[BinaryIO]:
        """A file that appears, whole, only when the block ends well."""
        with self._staged(file) as (stream, publish):
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            publish()

    @contextmanager
    def _staged(self, file: str) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
        if self._remote:
            with tempfile.TemporaryDirectory(prefix="palio-") as held:
                local = Path(held) / file
                with local.open("wb") as stream:
                    yield stream, lambda: self._put(str(local), file)
            return
        place = Path(self.at(file))
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{file}.{os.getpid()}{_PART}")
        try:
            with part.open("wb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)  # let go when the process ends, however it ends
                yield stream, lambda: _rename(part, place)
        finally:
            part.unlink(missing_ok=True)

    def _put(self, local: str, file: str) -> None:
        system, path = _remote(self.at(file))
        system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        system.put_file(local, path)

    def clean(self) -> None:
        """Remove what processes that no longer live had begun to write."""
        if self._remote:
            return
        for path in Path(self.name).glob(f".*{_PART}"):
            with path.open("rb") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue  # being written
                path.unlink(missing_ok=True)


_PART = ".part"


def _rename(part: Path, place: Path) -> None:
    part.replace(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name survives a power cut too
    finally:
        os.close(folder)
