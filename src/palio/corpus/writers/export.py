"""A corpus, or trajectories, become files of another format; every loss and every gap is counted.

For each pool: `<split>.jsonl` and, where rows have columns, `<split>.parquet`; `losses.jsonl.zst`
with what each trajectory lost; a README.md whose header tells `datasets.load_dataset` which file is
which split; the manifest last.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
import pyarrow as pa
import zstandard

from palio import __version__
from palio.corpus.build import read_pools
from palio.corpus.config import POOLS
from palio.corpus.lineage import read_lineage
from palio.corpus.readers.chat import read_chat
from palio.corpus.readers.importing import TraceImport
from palio.corpus.readers.losses import Loss
from palio.corpus.rows import read_rows
from palio.corpus.spool import REJECTS, RejectRow
from palio.corpus.writers.atif import atif_document
from palio.corpus.writers.exactness import Written
from palio.corpus.writers.hugging_face import Arguments, chat_row, kto_row
from palio.corpus.writers.steps import step_rows
from palio.corpus.writers.tables import CHAT, KTO, STEPS, SplitWriter
from palio.records import ConfigError, Profile, Provenance, Record, Trajectory, digest, to_json
from palio.rollout.verdicts import Judged
from palio.world.artefacts import MANIFEST, file_digest, naming, write_lines, write_manifest
from palio.world.lines import read_lines

Target = Literal["hf", "hf-flat", "kto", "grpo", "atif"]
TARGETS: tuple[Target, ...] = get_args(Target)
LOSSES = "losses.jsonl.zst"
_SCHEMAS: dict[str, pa.Schema] = {"hf": CHAT, "hf-flat": CHAT, "kto": KTO, "grpo": STEPS}
_MOST_BYTES = 256 << 20


class ExportConfig(Record, frozen=True, omit_defaults=False):
    """Every choice of an export.

    Attributes:
        to: the format.
        arguments: how calls hold their arguments; "object" only in hf and hf-flat, and then no
            Parquet is written, since columns would add nulls to them.
        profile: outcome profile whose success is the label of a KTO row.
    """

    to: Target
    arguments: Arguments = "string"
    profile: Profile = "oro"


class ExportReport(Record, frozen=True, omit_defaults=False):
    """What an export wrote.

    Attributes:
        trajectories: split -> trajectories that have at least one row.
        rows: split -> rows.
        skipped: why a trajectory has no row -> how many, e.g. "no_completion".
        losses: what differs after reading back -> trajectories, e.g. "events", "messages.name".
        unread: lines of the source that are no trajectory.
    """

    to: str
    trajectories: dict[str, int]
    rows: dict[str, int]
    skipped: dict[str, int]
    losses: dict[str, int]
    unread: int


class LossLine(Record, frozen=True):
    """The losses of one trajectory in `losses.jsonl.zst`."""

    trajectory_id: str
    losses: tuple[Loss, ...]


class _Entry(NamedTuple):
    split: str
    trajectory: Trajectory
    label: bool


def export(
    source: Path,
    config: ExportConfig,
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write `source` in another format.

    Args:
        source: a corpus folder, or a file or folder of traces of any format (one split "train").
        config: format and choices.
        out: folder to write; files of an earlier export in it are replaced.
        progress: called with the number of trajectories so far.

    Raises:
        ConfigError: object arguments for a format that has them as text, or KTO rows without
            verdicts to label them by.
        InputError: the source is missing or wrong.
    """
    _check(source, config)
    splits = POOLS if _is_corpus(source) else ("train",)
    schema = None if config.arguments == "object" else _SCHEMAS.get(config.to)
    stage = out / ".exporting"
    shutil.rmtree(stage, ignore_errors=True)  # left by an export that was killed
    stage.mkdir(parents=True)
    reader = None if _is_corpus(source) else TraceImport([source], max_bytes=_MOST_BYTES)
    entries = _of_corpus(source, config) if reader is None else _of_traces(reader)
    tally = _Tally(splits)
    try:
        with naming(out), ExitStack() as files:
            writers = {
                split: files.enter_context(closing(SplitWriter(stage, split, schema)))
                for split in splits
            }
            plain = files.enter_context((stage / LOSSES).open("wb"))
            lost = files.enter_context(zstandard.ZstdCompressor(level=3).stream_writer(plain))
            for number, entry in enumerate(entries, start=1):
                written = _written(entry, config)
                for row in written.rows:
                    writers[entry.split].write(row)
                tally.add(entry, written)
                if written.losses:
                    name = entry.trajectory.trajectory_id
                    lost.write(to_json(LossLine(trajectory_id=name, losses=written.losses)) + b"\n")
                if progress:
                    progress(number)
        report = tally.report(config.to, len(reader.rejects) if reader else 0)
        write_lines(stage / "README.md", [_card(report, parquet=schema is not None).encode()])
        _publish(stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    write_manifest(_manifest(source, out, config, report), out / MANIFEST)
    return report


def _is_corpus(source: Path) -> bool:
    return all((source / f"{pool}.jsonl").is_file() for pool in POOLS)


def _check(source: Path, config: ExportConfig) -> None:
    if config.arguments == "object" and config.to not in ("hf", "hf-flat"):
        raise ConfigError(f"{config.to} has one form of arguments", remedy="leave arguments out")
    if config.to == "kto" and not _is_corpus(source):
        raise ConfigError(
            "KTO rows are labelled by outcome verdicts, which bare traces do not have",
            where=str(source),
            remedy="name the folder of a `palio corpus build`",
        )


def _of_corpus(folder: Path, config: ExportConfig) -> Iterator[_Entry]:
    """Rows of the pools; for KTO also runs that failed nothing but the outcome gate."""
    labels = {}
    if config.to == "kto":
        labels = {line.trajectory_id: line.success(config.profile) for line in read_lineage(folder)}
    for pool in POOLS:
        for row in read_rows(folder / f"{pool}.jsonl"):
            read = read_chat(msgspec.to_builtins(row), "corpus")
            yield _Entry(pool, read.trajectory, labels.get(row.trajectory_id, True))
    if config.to == "kto" and (folder / REJECTS).is_file():
        pools = read_pools(folder)
        for line in read_lines(folder / REJECTS, max_bytes=_MOST_BYTES):
            judged = _failed(line.data, config.profile)
            pool = pools.get(judged.trajectory.problem_id, "") if judged else ""
            if judged and pool in POOLS:
                yield _Entry(pool, judged.trajectory, label=False)


def _failed(data: bytes, profile: Profile) -> Judged | None:
    """The run of a reject line that stopped at the outcome gate with a scored failure."""
    row = msgspec.json.decode(data, type=RejectRow) if data else None
    if row is None or row.reason != "outcome_failed" or row.judged is msgspec.UNSET:
        return None
    judged = msgspec.json.decode(row.judged, type=Judged | None)
    if judged is None:
        return None
    scored = [v for v in judged.verdicts.outcomes if v.profile == profile and v.status == "scored"]
    return judged if scored and not any(v.success for v in scored) else None


def _of_traces(reader: TraceImport) -> Iterator[_Entry]:
    for found in reader:
        yield _Entry("train", found.trajectory, label=True)


def _written(entry: _Entry, config: ExportConfig) -> Written:
    if config.to == "kto":
        return kto_row(entry.trajectory, entry.label)
    if config.to == "grpo":
        return step_rows(entry.trajectory)
    if config.to == "atif":
        return atif_document(entry.trajectory)
    tools: Literal["nested", "flat"] = "nested" if config.to == "hf" else "flat"
    return chat_row(entry.trajectory, tools=tools, arguments=config.arguments)


class _Tally:
    """Counts of one export."""

    def __init__(self, splits: tuple[str, ...]) -> None:
        self._trajectories = dict.fromkeys(splits, 0)
        self._rows = dict.fromkeys(splits, 0)
        self._skipped: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()

    def add(self, entry: _Entry, written: Written) -> None:
        """Count one trajectory."""
        if not written.rows:
            self._skipped.update(loss.code for loss in written.losses)
            return
        self._trajectories[entry.split] += 1
        self._rows[entry.split] += len(written.rows)
        self._losses.update({re.sub(r"\[\d+\]", "", loss.where) for loss in written.losses})

    def report(self, to: str, unread: int) -> ExportReport:
        """The counts, in the order of their names."""
        return ExportReport(
            to=to,
            trajectories=self._trajectories,
            rows=self._rows,
            skipped=dict(sorted(self._skipped.items())),
            losses=dict(sorted(self._losses.items())),
            unread=unread,
        )


def _card(report: ExportReport, *, parquet: bool) -> str:
    """The README: splits for `datasets.load_dataset` in its header, counts below."""
    suffix = "parquet" if parquet else "jsonl"
    splits = [split for split, rows in report.rows.items() if rows]
    head = ["---", "configs:", "- config_name: default", "  data_files:"]
    head += [f"  - split: {split}\n    path: {split}.{suffix}" for split in splits]
    body = ["---", "", f"# palio export: {report.to}", "", "| split | trajectories | rows |"]
    body += ["|---|---|---|"]
    body += [
        f"| {split} | {report.trajectories[split]} | {rows} |"
        for split, rows in report.rows.items()
    ]
    lost = ", ".join(f"{place} ({count})" for place, count in report.losses.items()) or "nothing"
    body += ["", f"Not carried over, with the number of trajectories: {lost}.", ""]
    return "\n".join([*head, *body])


def _publish(stage: Path, out: Path) -> None:
    """Move the files into place, what an earlier export left out of the way."""
    (out / MANIFEST).unlink(missing_ok=True)
    for split in POOLS:
        for suffix in ("jsonl", "parquet"):
            (out / f"{split}.{suffix}").unlink(missing_ok=True)
    for path in sorted(stage.iterdir()):
        path.replace(out / path.name)


def _manifest(source: Path, out: Path, config: ExportConfig, report: ExportReport) -> Provenance:
    inputs = {source.name: file_digest(source)} if source.is_file() else {}
    if (source / MANIFEST).is_file():
        inputs = {f"{source.name}/{MANIFEST}": file_digest(source / MANIFEST)}
    counts = {f"rows:{split}": rows for split, rows in report.rows.items()}
    counts |= {f"skipped:{reason}": count for reason, count in report.skipped.items()}
    return Provenance(
        kind="export",
        tool_version=__version__,
        config=msgspec.to_builtins(config),
        config_digest=digest(config),
        inputs=inputs,
        outputs={
            path.name: file_digest(path)
            for path in sorted(out.iterdir())
            if path.is_file() and path.name != MANIFEST
        },
        counts=counts,
    )
