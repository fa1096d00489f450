"""The sealed pool opens for a final claim only: with a reason, and every opening is in a log.

`sealed.jsonl` of a lab is append-only. An opening is on the disk before the first rollout, so that
one that was broken off is counted too; its result is a line of its own. Each line holds the digest
of the line before it and its own, so no line can be changed, removed or put between others without
breaking the chain. What a chain cannot show is that its end was cut off: publish the head, which
the page of evidence prints, with every claim.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from palio.agents.spec import policy_agent
from palio.broker.limits import Limits
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.exam import Exam
from palio.evaluate.experiment.lab import Lab
from palio.evaluate.experiment.runs import read_runs
from palio.evaluate.mainjob.measure import THREADS
from palio.evaluate.mainjob.stages import Reporter
from palio.evaluate.pin import loaded_pin
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.results import EvalResult
from palio.judging import default_encoder
from palio.records import (
    ConfigError,
    InputError,
    IntegrityError,
    Record,
    digest,
    from_json,
    to_json,
)
from palio.rollout.journal import lock_folder
from palio.suites.pools import SEALED
from palio.train.checkpoint import WEIGHTS, checkpoint_folder
from palio.train.serving import open_checkpoint
from palio.world.appended import mend_end, whole_lines
from palio.world.artefacts import file_digest, naming

LOG, CONFIG = "sealed.jsonl", "config.json"


class Rate(Record, frozen=True, omit_defaults=False):
    """Greedy successes under the headline profile, with the 95 % interval of the rate."""

    successes: int
    n: int
    low: float
    high: float


class Entry(Record, frozen=True, omit_defaults=False):
    """One line of the log.

    Attributes:
        event: "opened" before the first rollout, "resumed" when a broken-off opening goes on,
            "result" when it is over.
        opening: its number, from 1.
        at: UTC, ISO 8601.
        who, why: as the caller says.
        checkpoint: digest of the weights.
        run: plan/arm/seed of the lab's run that made them, "" for none.
        lab: digest of the lab's configuration.
        suite: digest of the problems.
        unscored: rollouts that infrastructure failed; of a result.
        timed_out: rollouts that the wall clock stopped, failures in every rate; of a result. Unset
            where it was not recorded, and then the digest is that of a line without it.
        rates: of a result, by kind and "overall".
        previous: digest of the line before, "" in the first.
        own: digest of this line with `own` empty.
    """

    event: Literal["opened", "resumed", "result"]
    opening: int
    at: str
    who: str
    why: str
    checkpoint: str
    run: str
    lab: str
    suite: str
    unscored: int = 0
    timed_out: int | msgspec.UnsetType = msgspec.UNSET
    rates: dict[str, Rate] = {}
    previous: str = ""
    own: str = ""


class Opening(Record, frozen=True, omit_defaults=False):
    """One opening: how it began, how often it was gone on with, and its result.

    Attributes:
        result: None where it was broken off.
        resumed: lines of its going on; each has its own time and reason in the log.
    """

    began: Entry
    result: Entry | None
    resumed: int = 0


def read_log(folder: Path) -> list[Entry]:
    """The log of a lab, [] where the pool was never opened.

    A last line torn by a kill is left out.

    Raises:
        IntegrityError: a line was changed, removed or added.
        InputError: a line is none of this log.
    """
    entries: list[Entry] = []
    for line in whole_lines(folder / LOG):
        entry = from_json(line.data, Entry, where=line.where)
        previous = entries[-1].own if entries else ""
        if entry.previous != previous or entry.own != _own(entry):
            raise IntegrityError(
                "the log of the sealed pool was changed here",
                where=line.where,
                remedy="nothing measured on this pool may be claimed; make a lab of another seed",
            )
        entries.append(entry)
    return entries


def openings(entries: Sequence[Entry]) -> list[Opening]:
    """The openings in order, each with its result."""
    results = {entry.opening: entry for entry in entries if entry.event == "result"}
    resumed = Counter(entry.opening for entry in entries if entry.event == "resumed")
    return [
        Opening(began=entry, result=results.get(entry.opening), resumed=resumed[entry.opening])
        for entry in entries
        if entry.event == "opened"
    ]


def open_sealed(
    out: Path,
    checkpoint: Path,
    why: str,
    reporter: Reporter,
    *,
    who: str = "",
    now: Callable[[], float] = time.time,
) -> Opening:
    """Examine a checkpoint on the sealed pool of a lab, greedily, and log it.

    One that was broken off goes on, under its number, when the same checkpoint is named again.

    Args:
        out: folder of the lab.
        checkpoint: a checkpoint, a stage's or a run's folder.
        why: what is claimed with it; must say something.
        reporter: progress.
        who: opens it.
        now: seconds since the epoch.

    Raises:
        ConfigError: no reason, or another process has the pool open.
        InputError: no lab, or no readable checkpoint.
        IntegrityError: the log was changed.
    """
    if not why.strip():
        raise ConfigError(
            "the sealed pool opens with a reason only",
            remedy="--reason says what final claim this opening is for",
        )
    config = read_config(out)
    folder = checkpoint_folder(checkpoint)
    weights = weights_digest(folder)
    exam = Lab(config, out, reporter).exam(SEALED)
    about = Entry(
        event="opened",
        opening=0,
        at="",
        who=who,
        why=why.strip(),
        checkpoint=weights,
        run=_run_of(out, weights),
        lab=config.digest(),
        suite=digest(list(exam.problems)),
    )
    (out / SEALED).mkdir(exist_ok=True)
    with lock_folder(out / SEALED):
        log = _Log(out, read_log(out), now)
        began = log.begin(about)
        result = _examined(exam, folder, out / SEALED / str(began.opening), reporter, now)
        log.append(_ended(about, began.opening, result))
    return openings(read_log(out))[began.opening - 1]


def _ended(about: Entry, opening: int, result: EvalResult) -> Entry:
    return msgspec.structs.replace(
        about,
        event="result",
        opening=opening,
        unscored=result.overall.unscored_rollouts,
        timed_out=result.overall.timed_out,
        rates=_rates(result),
    )


def read_config(out: Path) -> LabConfig:
    """The configuration of the lab in a folder.

    Raises:
        InputError: there is no lab, or its worlds are not made yet.
    """
    path = out / CONFIG
    if not path.is_file() or not (out / "world" / "pools.json").is_file():
        raise InputError(
            "no lab here", where=str(out), remedy="`palio experiment run --out` makes one"
        )
    return from_json(path.read_bytes(), LabConfig, where=str(path))


def weights_digest(folder: Path) -> str:
    """Digest of a checkpoint's weights: the file's own, or that of all files where they are many.

    Raises:
        InputError: there are no weights.
    """
    found = {path.name: file_digest(path) for path in sorted(folder.glob("*.safetensors"))}
    if not found:
        raise InputError("no weights here", where=str(folder), remedy="name a checkpoint")
    return found[WEIGHTS] if [*found] == [WEIGHTS] else digest(found)


def _run_of(out: Path, weights: str) -> str:
    """The lab's own run with these weights."""
    for run in read_runs(out):
        if run.checkpoint == weights:
            return f"{run.plan}/{run.arm}/{run.seed}"
    return ""


def _broken_off(entries: Sequence[Entry], about: Entry) -> Entry | None:
    """The last opening of these weights on these problems, if it has no result."""
    for opening in reversed(openings(entries)):
        began = opening.began
        if (began.checkpoint, began.suite) == (about.checkpoint, about.suite):
            return None if opening.result else began
    return None


def _examined(
    exam: Exam, checkpoint: Path, out: Path, reporter: Reporter, now: Callable[[], float]
) -> EvalResult:
    reporter.begin(SEALED, len(exam.problems))
    started = now()
    with open_checkpoint(checkpoint) as engine:
        result = evaluate_policy(
            Policy(SEALED, policy_agent(SEALED, SEALED), engine, loaded_pin(engine.identity)),
            exam.problems,
            exam.worlds,
            default_encoder(),
            out=out,
            settings=EvalSettings(threads=THREADS, limits=Limits(seconds=300.0)),
            clusters=exam.clusters,
            progress=lambda step: reporter.advance(step.done),
        )
    reporter.end(SEALED, now() - started, skipped=False)
    return result


def _rates(result: EvalResult) -> dict[str, Rate]:
    found = {}
    for name, group in result.intents.items():
        rate = group.asr["oro"]
        if rate.n:
            found[name] = Rate(successes=rate.successes, n=rate.n, low=rate.low, high=rate.high)
    return found


def _own(entry: Entry) -> str:
    return digest(msgspec.structs.replace(entry, own=""))


class _Log:
    """Appends entries; each is on the disk when `append` returns."""

    def __init__(self, folder: Path, entries: list[Entry], now: Callable[[], float]) -> None:
        self._path = folder / LOG
        self._entries = entries
        self._last = entries[-1].own if entries else ""
        self._now = now
        mend_end(self._path)

    def begin(self, about: Entry) -> Entry:
        """The line of a new opening, or of the broken-off one that goes on, which is noted too."""
        began = _broken_off(self._entries, about)
        if began is None:
            number = 1 + sum(entry.event == "opened" for entry in self._entries)
            return self.append(msgspec.structs.replace(about, opening=number))
        self.append(msgspec.structs.replace(about, event="resumed", opening=began.opening))
        return began

    def append(self, entry: Entry) -> Entry:
        """Write an entry with its time and its place in the chain."""
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="seconds")
        placed = msgspec.structs.replace(entry, at=at, previous=self._last)
        placed = msgspec.structs.replace(placed, own=_own(placed))
        with naming(self._path), self._path.open("ab") as file:
            file.write(to_json(placed) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._last = placed.own
        return placed
