"""A stage is a function from a checkpoint to a checkpoint; everything it may use is its context."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palio.records import InputError, Record, to_json
from palio.world.appended import mend_end, whole_records

if TYPE_CHECKING:
    from palio.corpus.rows import CorpusRow
    from palio.train.backend import Backend
    from palio.train.ground import Ground
    from palio.train.recipe import Recipe

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


Report = Callable[[float, str], None]
"""Called by a stage with the share of it that is done, in [0, 1], and a few words."""


@dataclass(frozen=True)
class Context:
    """What a stage works with.

    Attributes:
        recipe: the whole recipe.
        name: of this stage.
        number: its place in the recipe, from 1.
        seed: the recipe's and the stage's, added.
        rows: the training rows of the corpus, chosen and in corpus order; none of a problem that
            the recipe holds back.
        ground: training problems and their worlds, of those that the recipe holds back or of the
            others as the kind asks; None where the run was given none.
        backend: how this recipe's model is trained and served.
        inputs: name -> digest of what the run reads; goes into every checkpoint's manifest.
        threads: worker threads; results do not depend on it.
        device: where a model of ours is trained and served, as torch names it; another device sums
            in another order, so its results are others.
        save_every: seconds between two saved states inside a stage.
        teacher_key: bearer token of a teacher's endpoint.
        clock: seconds.
    """

    recipe: Recipe
    name: str
    number: int
    seed: int
    rows: Sequence[CorpusRow]
    ground: Ground | None
    backend: Backend
    inputs: Mapping[str, str] = field(default_factory=dict)
    threads: int = 2
    device: str = "cpu"
    save_every: float = 60.0
    teacher_key: str = ""
    clock: Callable[[], float] = time.monotonic


def ground_of(context: Context) -> Ground:
    """The training problems that a stage rolls out.

    Raises:
        InputError: there are none; `run.train` refuses such a run before its first stage.
    """
    if context.ground is None:
        raise InputError(
            "rollouts need training problems and their catalogues",
            remedy="name them with --suite and --catalogue",
        )
    return context.ground


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


StageRun = Callable[[Any, Context, Path | None, Path, Report], StageResult]
"""(settings, context, previous checkpoint, stage folder, report) -> result.

The stage's folder exists. The stage keeps there whatever it needs to go on after SIGKILL, appends
its measurements to `metrics.jsonl`, and writes its checkpoint with the backend. It must not touch
anything outside its folder.
"""


class Kind(Record, frozen=True):
    """One kind of stage.

    Attributes:
        settings: its settings record, a `StageSettings`.
        run: does it, see `StageRun`.
        shrink: its settings for a dry run.
        first: whether it can be the first stage, without a checkpoint before it.
        ground: whether it needs training problems; see `runs_problems`.
        worldless: whether it needs none with these settings, though its kind does.
        own: whether the student itself runs them; then it gets those that the recipe holds back.
        reads: name -> digest of what a stage with these settings reads beside corpus, problems and
            the recipe's model; a stage that goes on is held to them (`held`).
        asks: the server that it asks with these settings, after the checkpoint of the stage before;
            a stage that goes on is held to what that says of itself (`servers`).
        needs: refuses settings that can be used with nothing that is here, before any stage of a
            chain begins (`ready`).
    """

    settings: type[StageSettings]
    run: StageRun
    shrink: Callable[[Any], Any]
    first: bool = False
    ground: bool = False
    worldless: Callable[[Any], bool] = lambda _: False
    own: bool = False
    reads: Callable[[Any], dict[str, str]] = lambda _: {}
    asks: Callable[[Any, Path | None], Endpoint | None] = lambda *_: None
    needs: Callable[[Any], None] = lambda _: None

    def runs_problems(self, settings: StageSettings) -> bool:
        """Whether a stage with these settings needs training problems and their catalogues."""
        return self.ground and not self.worldless(settings)


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
