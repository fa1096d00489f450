"""Verdicts are appended beside the old ones and never changed: a new judgement is a new line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from palio.records.base import to_json
from palio.records.faults import InputError, IntegrityError
from palio.records.verdict import JudgeId, ReasoningVerdict, Verdict
from palio.world.lines import read_lines

VERDICTS = "verdicts.jsonl"
"""File of a run folder that all verdicts of the run are appended to."""
MAX_VERDICT_BYTES = 16 * 1024 * 1024
_decoder: msgspec.json.Decoder[Verdict] = msgspec.json.Decoder(Verdict)


def append_verdicts(path: Path, verdicts: Iterable[Verdict]) -> int:
    """Append verdicts as JSON lines, flushed to disk; returns how many were new.

    Each line leaves this process as soon as its verdict is there, so a kill loses none that took a
    model's time. A verdict that stands in the file byte for byte is not written again, so that
    judging twice changes nothing. A line that a killed run left half written is ended first;
    `read_verdicts` skips it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    known = (
        {_mark(line.data) for line in read_lines(path, max_bytes=MAX_VERDICT_BYTES)}
        if path.is_file()
        else set()
    )
    written = 0
    with path.open("ab") as out:
        if out.tell() and not _ends_line(path):
            out.write(b"\n")
        for verdict in verdicts:
            line = to_json(verdict)
            if _mark(line) in known:
                continue
            out.write(line + b"\n")
            out.flush()
            written += 1
        os.fsync(out.fileno())
    return written


def _mark(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def read_verdicts(path: Path) -> Iterator[Verdict]:
    """The verdicts of a file in the order in which they were given; none if there is no file.

    Raises:
        InputError: a line is no verdict; names file and line. A line that breaks off at its end,
            as a killed writer leaves it, is skipped.
    """
    if not path.is_file():
        return
    for line in read_lines(path, max_bytes=MAX_VERDICT_BYTES):
        if not line.data.rstrip().endswith(b"}"):
            continue
        try:
            yield _decoder.decode(line.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = f"{path}:{line.number}"
            raise InputError(f"not a verdict: {error}", where=where) from error


def reasoning_by_judge(path: Path) -> dict[JudgeId, dict[str, ReasoningVerdict]]:
    """Judge -> trajectory id -> its last reasoning verdict; judges in order of their last verdict.

    Raises:
        InputError: a line is no verdict.
    """
    found: dict[JudgeId, dict[str, ReasoningVerdict]] = {}
    for verdict in read_verdicts(path):
        if isinstance(verdict, ReasoningVerdict):
            held = found.pop(verdict.judge, {})
            held.pop(verdict.trajectory_id, None)
            held[verdict.trajectory_id] = verdict
            found[verdict.judge] = held
    return found


def one_judge(verdicts: Iterable[ReasoningVerdict]) -> JudgeId | None:
    """The judge of all verdicts, None where there are none.

    Raises:
        IntegrityError: two judges are mixed, whose verdicts must never stand in one ranking.
    """
    judges = dict.fromkeys(verdict.judge for verdict in verdicts)
    if len(judges) > 1:
        names = ", ".join(f"{one.name} {one.config_digest[:15]}" for one in judges)
        raise IntegrityError(
            f"verdicts of {len(judges)} judges are mixed: {names}",
            remedy="judge all runs of a race under one judge with `palio judge rejudge`",
        )
    return next(iter(judges), None)


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
