"""What every kind of stage is told, makes, asks and measures; what it may use is its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from palio.records import InputError, Record, to_json
from palio.world.appended import mend_end, whole_records

METRICS = "metrics.jsonl"
STATE, TRAINER, STATES = "state.pt", "trainer", "states"
"""What a stage goes on from after SIGKILL: our loop's file, folders of TRL's trainers."""


class StageSettings(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Base of every kind's settings.

    Attributes:
        seed: added to the recipe's seed.
    """

    seed: int = 0


class StageResult(Record, frozen=True):
    """What a stage made.

    Attributes:
        checkpoint: folder of its checkpoint, inside the stage's folder.
        counts: what it was made of, in numbers.
        measures: numbers that a report may show, e.g. the mean reward.
        inputs: name -> digest of what it read beside corpus and problems, e.g. teacher rows.
        shortened: whether a time limit cut it short, so that the result depends on the machine.
    """

    checkpoint: Path
    counts: dict[str, int] = {}
    measures: dict[str, float] = {}
    inputs: dict[str, str] = {}
    shortened: bool = False


class Step(Record, frozen=True, omit_defaults=False):
    """Progress of a run.

    Attributes:
        stage: its name.
        number, stages: 1-based place among the stages.
        share: of this stage that is done, in [0, 1].
        note: a few words for people.
    """

    stage: str
    number: int
    stages: int
    share: float
    note: str = ""


class Endpoint(Record, frozen=True):
    """A model's server that a stage asks.

    Attributes:
        base_url: with the version.
        model: its name there.
        teacher: whether that is one model for the whole run; the student is another one after each
            stage.
    """

    base_url: str
    model: str
    teacher: bool = False


class Keys(NamedTuple):
    """Bearer tokens for the servers that stages ask; "" for none.

    Attributes:
        teacher: of every teacher.
        sampler: of what samples the student, `sampling.base_url`.
    """

    teacher: str = ""
    sampler: str = ""

    def of(self, endpoint: Endpoint) -> str:
        """The token for a server; the other one is none of its business."""
        return self.teacher if endpoint.teacher else self.sampler


NO_KEYS = Keys()
Report = Callable[[float, str], None]
"""Called by a stage with the share of it that is done, in [0, 1], and a few words."""


def check_trained(steps: int, where: Path) -> None:
    """A checkpoint is only called trained when there was an update.

    A stage that goes on from the state of its last update has the steps that were made before.

    Raises:
        InputError: there was none.
    """
    if steps < 1:
        raise InputError(
            "the stage made no update, so there is nothing to keep",
            where=str(where),
            remedy="give it more problems or rows than a batch takes, and a `max_steps` or "
            "`num_train_epochs` above 0",
        )


def append_metrics(folder: Path, row: Mapping[str, Any] | Record) -> None:
    """Append one line to a stage's `metrics.jsonl`."""
    with (folder / METRICS).open("ab") as file:
        file.write(to_json(row) + b"\n")


def trim_metrics(folder: Path, step: int) -> None:
    """Drop measurements beyond the state that a stage goes on from; the file is never half."""
    mend_end(folder / METRICS)
    rows = read_metrics(folder)
    kept = [row for row in rows if row.get("step", 0) <= step]
    if len(kept) < len(rows):
        scratch = folder / f".{METRICS}.new"
        scratch.write_bytes(b"".join(to_json(row) + b"\n" for row in kept))
        scratch.replace(folder / METRICS)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The measurements of a stage; a last line torn by a kill is left out.

    Raises:
        InputError: another line is torn; names file and row.
    """
    return list(whole_records(folder / METRICS, dict[str, Any]))
