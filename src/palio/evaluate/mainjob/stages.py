"""A long job is a list of stages; finished ones are skipped, a changed configuration refused."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil

from palio.records import IntegrityError, Record, ResumeError, canonical_json, digest, from_json


class Reporter(Protocol):
    """Where progress goes; the command line draws it."""

    def begin(self, stage: str, total: int | None) -> None:
        """A stage starts; `total` steps are expected, None = unknown."""

    def advance(self, done: int, note: str = "") -> None:
        """`done` steps of the current stage are finished."""

    def end(self, stage: str, seconds: float, *, skipped: bool) -> None:
        """The stage is over, or was found finished."""


class StageMark(Record, frozen=True):
    """Written last when a stage is finished; the proof that it need not run again."""

    stage: str
    inputs_digest: str
    seconds: float
    peak_rss_mb: float
    result: dict[str, Any] = {}


class PeakMemory:
    """Largest resident memory of this process and its children together, sampled in a thread.

    Sampling every 0.25 s costs under 1 % of a core with three children.
    """

    def __init__(self, interval_s: float = 0.25) -> None:
        self.peak_mb = 0.0
        self._interval = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self._sample()

    def _sample(self) -> None:
        me = psutil.Process(os.getpid())
        total = 0
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue  # it ended between the listing and the reading
        self.peak_mb = max(self.peak_mb, total / 2**20)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees all the old bytes or all the new ones."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Stages:
    """Runs stages in a folder and remembers which are finished.

    Args:
        out: the run's folder; made when missing.
        config: the whole configuration; stored, and compared when the folder exists. While no
            stage is finished another one takes its place, and a stage that was begun begins anew.
        reporter: where progress goes.

    Raises:
        ResumeError: a stage was finished under another configuration; names the keys that differ.
    """

    def __init__(self, out: Path, config: Record, reporter: Reporter) -> None:
        self.out = out
        self.reporter = reporter
        self.marks: dict[str, StageMark] = {}
        (out / "stages").mkdir(parents=True, exist_ok=True)
        self._replaced = self._pin(config)

    def _pin(self, config: Record) -> bool:
        """Store the configuration; whether another one was there, which no finished stage has."""
        path = self.out / "config.json"
        now = msgspec.json.decode(canonical_json(config))  # as it is read back: tuples are lists
        if path.exists():
            try:
                then = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise ResumeError(
                    f"what this folder was made with cannot be read: {error}",
                    where=str(path),
                    remedy="choose another --out, or put the file back as it was",
                ) from error
            keys = sorted(k for k in now.keys() | then.keys() if now.get(k) != then.get(k))
            if not keys:
                return False
            if any((self.out / "stages").glob("*.json")):
                raise ResumeError(
                    f"this folder was made with other settings: {', '.join(keys)}",
                    where=str(self.out),
                    remedy="choose another --out, or remove the folder to start afresh",
                )
        replaced = path.exists()
        write_atomically(path, canonical_json(config))
        return replaced

    def run(
        self,
        name: str,
        inputs: Any,
        work: Callable[[Path], dict[str, Any]],
        *,
        total: int | None = None,
    ) -> dict[str, Any]:
        """Run one stage, or give back what it returned when it is already finished.

        Args:
            name: the stage's name, also its folder under `out`.
            inputs: plain data or a record that decides the result; digested.
            work: does the stage in the given folder and returns small plain data.
            total: expected number of progress steps.

        Raises:
            IntegrityError: a finished stage was made from other inputs.
        """
        mark_path = self.out / "stages" / f"{name}.json"
        wanted = digest(inputs)
        self.reporter.begin(name, total)
        if mark_path.exists():
            mark = from_json(mark_path.read_bytes(), StageMark, where=str(mark_path))
            if mark.inputs_digest != wanted:
                raise IntegrityError(
                    f"stage {name} was made from other inputs",
                    where=str(mark_path),
                    remedy=f"remove {mark_path} and {self.out / name} to run it again",
                )
            self.marks[name] = mark
            self.reporter.end(name, mark.seconds, skipped=True)
            return mark.result
        folder = self.out / name
        if self._replaced:  # what was begun there has the other configuration
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        started = time.monotonic()
        with PeakMemory() as memory:
            result = work(folder)
        mark = StageMark(
            stage=name,
            inputs_digest=wanted,
            seconds=round(time.monotonic() - started, 3),
            peak_rss_mb=round(memory.peak_mb, 1),
            result=result,
        )
        write_atomically(mark_path, msgspec.json.encode(mark))
        self.marks[name] = mark
        self.reporter.end(name, mark.seconds, skipped=False)
        return result

    @property
    def seconds(self) -> float:
        """Seconds of work in all stages seen so far, those of earlier runs too."""
        return sum(mark.seconds for mark in self.marks.values())

    @property
    def peak_rss_mb(self) -> float:
        """The largest peak of any stage, MiB over the whole process tree."""
        return max((mark.peak_rss_mb for mark in self.marks.values()), default=0.0)
