"""A product file of any size becomes a catalogue folder in bounded memory; every bad line is kept.

Sorted runs of products go to a temporary folder beside the output and are merged, so memory holds
one run (64 MB of lines) whatever the size of the source.
"""

from __future__ import annotations

import hashlib
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from palio import __version__
from palio.records import InputError, Provenance, digest, to_json
from palio.world.artefacts import MANIFEST, file_digest, replacing, write_manifest
from palio.world.catalogue import PRODUCTS
from palio.world.lines import MAX_LINE_BYTES, Line, Progress, read_lines
from palio.world.rows import BadRowError, product_of_line

REJECTS = "rejects.jsonl"
RUN_BYTES = 64 * 1024 * 1024
"""Bytes of product lines that are sorted in memory at a time."""

_Entry = tuple[str, int, bytes]
"""(product id, source line, product as a JSON line)."""


def import_catalogue(
    source: Path,
    out: Path,
    *,
    catalogue_id: str = "",
    max_line_bytes: int = MAX_LINE_BYTES,
    run_bytes: int = RUN_BYTES,
    progress: Progress | None = None,
) -> Provenance:
    """Import ShoppingBench documents or plain product lines (plain, gzip or zstd).

    Writes `products.jsonl` (sorted, one line a product), `rejects.jsonl` (one `Reject` a bad line)
    and last `manifest.json`. Of rows with one id the first is kept. Counts in the manifest: "in",
    "kept", and "rejected:<reason>" for each reason; in = kept + all rejected.

    Args:
        source: the product file.
        out: catalogue folder to write.
        catalogue_id: name of the catalogue; "" takes the source's name.
        max_line_bytes: longer lines are rejected.
        run_bytes: how many bytes of lines are sorted in memory.
        progress: called every 2,000 lines.

    Raises:
        InputError: the source is missing or holds no product at all; the rejects are written.
    """
    out.mkdir(parents=True, exist_ok=True)
    reasons: Counter[str] = Counter()
    with (
        replacing(out / REJECTS) as rejects,
        tempfile.TemporaryDirectory(prefix=".import-", dir=out) as folder,
    ):

        def refuse(line: int, bad: BadRowError) -> None:
            reasons[bad.reason] += 1
            rejects.write(to_json(bad.reject(str(source), line)) + b"\n")

        lines = read_lines(source, max_bytes=max_line_bytes, progress=progress)
        runs = _sorted_runs(lines, Path(folder), run_bytes, refuse)
        kept, products_digest = _write_merged(runs, out / PRODUCTS, refuse)
    if not kept:
        raise _empty(source, reasons, out)
    config = {
        "catalogue_id": catalogue_id or source.name.split(".")[0],
        "max_line_bytes": max_line_bytes,
    }
    counts = {f"rejected:{reason}": count for reason, count in sorted(reasons.items())}
    manifest = Provenance(
        kind="catalogue",
        tool_version=__version__,
        config=config,
        config_digest=digest(config),
        inputs={source.name: file_digest(source)},
        outputs={PRODUCTS: products_digest, REJECTS: file_digest(out / REJECTS)},
        counts={"in": kept + reasons.total(), "kept": kept, **counts},
    )
    write_manifest(manifest, out / MANIFEST)
    return manifest


def _empty(source: Path, reasons: Counter[str], out: Path) -> InputError:
    what = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
    return InputError(
        f"no product in it ({what or 'the file is empty'})",
        where=str(source),
        remedy=f"see {out / REJECTS} for the reasons",
    )


def _sorted_runs(
    lines: Iterator[Line],
    folder: Path,
    run_bytes: int,
    refuse: Callable[[int, BadRowError], None],
) -> list[Iterator[_Entry]]:
    """Parse lines and sort them in runs; all but the last run lie in files of `folder`."""
    runs: list[Iterator[_Entry]] = []
    batch: list[_Entry] = []
    size = 0
    for line in lines:
        try:
            if line.fault:
                raise BadRowError(line.fault, line.detail)
            product = product_of_line(line.data)
        except BadRowError as bad:
            refuse(line.number, bad)
            continue
        batch.append((product.product_id, line.number, to_json(product) + b"\n"))
        size += len(batch[-1][2])
        if size >= run_bytes:
            path = folder / f"{len(runs)}.run"
            _write_run(path, sorted(batch))
            runs.append(_read_run(path))
            batch, size = [], 0
    return [*runs, iter(sorted(batch))]


def _write_run(path: Path, batch: list[_Entry]) -> None:
    """One entry a line, tab-separated; ids are printable, so they hold no tab."""
    with path.open("wb") as stream:
        stream.writelines(
            f"{product_id}\t{number}\t".encode() + text for product_id, number, text in batch
        )


def _read_run(path: Path) -> Iterator[_Entry]:
    with path.open("rb") as stream:
        for line in stream:
            product_id, number, text = line.split(b"\t", 2)
            yield product_id.decode(), int(number), text


def _write_merged(
    runs: list[Iterator[_Entry]], path: Path, refuse: Callable[[int, BadRowError], None]
) -> tuple[int, str]:
    """Merge runs into the products file; returns (products, digest of the file)."""
    kept = 0
    running = hashlib.sha256()
    last = ""
    with replacing(path) as stream:
        for product_id, number, text in heapq.merge(*runs):
            if product_id == last:
                refuse(number, BadRowError("duplicate_id", f"{product_id!r} stands above already"))
                continue
            last = product_id
            kept += 1
            running.update(text)
            stream.write(text)
    return kept, "sha256:" + running.hexdigest()
