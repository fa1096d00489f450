"""An import leaves three files and a manifest: trajectories, rejects, losses, each line counted."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import zstandard

from palio import __version__
from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.losses import Loss
from palio.corpus.readers.sources import STDIN
from palio.records import IntegrityError, Provenance, Record, to_json
from palio.world.artefacts import file_digest, replacing, write_lines, write_manifest


class ImportLine(Record, frozen=True):
    """Where one trajectory stood, in which format, and what reading changed."""

    trajectory_id: str
    file: str
    line: int
    format: str
    losses: tuple[Loss, ...] = ()


def write_import(reader: TraceImport, out: Path) -> dict[str, Path]:
    """Read everything and write it.

    Args:
        reader: what is read.
        out: trajectories as JSON lines, compressed as the name's end says (.gz, .zst). Beside it,
            with the same beginning: `.rejects.jsonl`, `.losses.jsonl.zst`, `.manifest.json`.

    Returns:
        "trajectories", "rejects", "losses", "manifest" -> path.

    Raises:
        IntegrityError: a record was neither read nor rejected.
    """
    stem = out.name.removesuffix(".zst").removesuffix(".gz").removesuffix(".jsonl")
    files = {
        "trajectories": out,
        "rejects": out.with_name(f"{stem}.rejects.jsonl"),
        "losses": out.with_name(f"{stem}.losses.jsonl.zst"),
        "manifest": out.with_name(f"{stem}.manifest.json"),
    }
    rows = read = last = 0
    with _packed(out) as trajectories, _packed(files["losses"]) as losses:
        for found in reader:
            rows += 1
            name = found.trajectory.trajectory_id
            trajectories.write(to_json(found.trajectory) + b"\n")
            line = ImportLine(
                trajectory_id=name,
                file=found.file,
                line=found.line,
                format=found.format,
                losses=found.losses,
            )
            losses.write(to_json(line) + b"\n")
            if reader.records != last:  # a record may hold several trajectories
                read, last = read + 1, reader.records
    if reader.records != read + len(reader.rejects):
        raise IntegrityError(
            f"{reader.records} records, {read} read, {len(reader.rejects)} rejected",
            remedy="this is a defect of palio: please report the file",
        )
    write_lines(files["rejects"], (to_json(reject) + b"\n" for reject in reader.rejects))
    write_manifest(_manifest(reader, files, rows), files["manifest"])
    return files


@contextmanager
def _packed(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears when it is complete, compressed as its name says."""
    with replacing(path) as stream:
        if path.name.endswith(".gz"):
            # no time and no name inside: the same trajectories have the same bytes
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        elif path.name.endswith(".zst"):
            with zstandard.ZstdCompressor(level=3).stream_writer(stream, closefd=False) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield stream


def _manifest(reader: TraceImport, files: dict[str, Path], rows: int) -> Provenance:
    counts = {"records": reader.records, "trajectories": rows}
    counts |= {f"format:{name}": count for name, count in sorted(reader.formats.items())}
    counts |= {f"loss:{code}": count for code, count in sorted(reader.losses.items())}
    rejected = Counter(reject.reason for reject in reader.rejects)
    counts |= {f"rejected:{reason}": count for reason, count in sorted(rejected.items())}
    return Provenance(
        kind="import",
        tool_version=__version__,
        inputs={name: file_digest(Path(name)) for name in reader.files if name != STDIN},
        outputs={path.name: file_digest(path) for path in files.values() if path.is_file()},
        counts=counts,
    )
