"""KTO, Dr. GRPO and distillation in the processes of a launcher: all train, the first one records.

The stage's own process writes a job and waits; each training process reads it and runs the trainer
of the stage, which shares rows, rollouts and gradients out over them (accelerate). The first one
saves the weights and tells what it did; the stage's own process then seals the checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from palio.records import ConfigError, Record, from_json, to_json
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.job import FILE, SAVED, save_trained
from palio.train.backends.launch import launched
from palio.train.backends.merging import rounding_counts
from palio.train.backends.starter import end_with_starter
from palio.train.backends.weights import load_tokenizer
from palio.train.checkpoint import CHECKPOINT, seal
from palio.train.context import Context
from palio.train.recipe import PretrainedModel
from palio.train.rl.hooks import last_measures, last_state
from palio.train.rl.material import GROUND
from palio.train.rl.opening import pretrained_policy
from palio.train.rl.policy import Policy
from palio.train.rows import trained_on
from palio.train.settings import TrlSettings
from palio.train.stage import StageResult, check_trained
from palio.train.stages import kind_named

ROWS, DONE = "rows.jsonl", "trained.json"
"""In the stage's folder: rows that the processes read, and what the first one tells."""
WORKER = "palio.cli.train_worker"
"""The module that a launcher runs; it reads the environment, which nothing here may."""
PARTS: dict[str, str] = {
    "kto": "palio.train.preference.kto:work_kto",
    "grpo": "palio.train.rl.grpo:work_grpo",
    "distill": "palio.train.rl.distill:work_distill",
}
"""Kind of stage -> what one of its training processes does."""


class StageJob(Record, frozen=True):
    """All that a training process needs to know beside what lies in the stage's folder.

    Attributes:
        kind: of the stage, a key of `PARTS`.
        folder: the stage's.
        settings: the kind's, as plain data.
        start: checkpoint of the stage before; "" for the model's own weights.
    """

    kind: str
    folder: str
    model: PretrainedModel
    settings: dict[str, Any]
    seed: int
    start: str = ""

    @property
    def place(self) -> Path:
        """The stage's folder."""
        return Path(self.folder)


class Done(Record, frozen=True):
    """What the first training process tells.

    Attributes:
        counts: what was trained on, in numbers.
        rows: digest of what was trained on, where only the trainer knows its order.
    """

    counts: dict[str, int]
    rows: str = ""


class Desk(Record, frozen=True):
    """What a training process works with, beside the policy.

    Attributes:
        out: the stage's folder.
        key: bearer token of a teacher's endpoint.
    """

    out: Path
    seed: int
    key: str = ""


Part = Callable[[Any, Policy, Desk], tuple[Any, Done]]
"""(settings, policy, desk) -> (the trainer that has trained it, what to tell)."""


def trained_elsewhere(
    kind: str,
    settings: Any,
    context: Context,
    previous: Path | None,
    out: Path,
    reads: Callable[[], None],
) -> Done:
    """Train a stage in the processes that its `trl.launch` starts; goes on after SIGKILL.

    Args:
        kind: a key of `PARTS`.
        settings: of the stage.
        context: of the stage.
        previous: checkpoint of the stage before.
        out: the stage's folder.
        reads: writes what the processes read beside the job.

    Raises:
        ConfigError: the model is one of palio's own.
        MissingDependencyError: there is no such launcher.
        PalioError: a process failed; names its log.
    """
    model = context.recipe.pretrained
    if model is None:
        raise ConfigError(
            f"stage {context.name!r}: a model of palio's own is trained in one process",
            remedy="take `launch` out",
        )
    reads()
    last_state(out)  # a half-written state is put aside by one process, before there are several
    shutil.rmtree(out / SAVED, ignore_errors=True)
    (out / DONE).unlink(missing_ok=True)
    job = StageJob(
        kind=kind,
        folder=str(out),
        model=model,
        settings=msgspec.to_builtins(settings),
        seed=context.seed,
        start=str(previous) if previous is not None else "",
    )
    (out / FILE).write_bytes(to_json(job))
    launched(job, settings.trl.launch, module=WORKER, key=context.keys.teacher)
    return from_json((out / DONE).read_bytes(), Done, where=str(out / DONE))


def sealed(
    context: Context, previous: Path | None, out: Path, counts: dict[str, int], rows: str
) -> StageResult:
    """What `hooks.finished` makes of a policy, of the weights that the processes saved.

    What was written for them goes then.

    Raises:
        InputError: there was no update.
    """
    check_trained(counts["steps"], out)
    codec = context.backend.codec(previous, context)
    counts = counts | rounding_counts(out / SAVED)
    seal(
        out / SAVED,
        out / CHECKPOINT,
        config=context.recipe.prefix(context.number),
        inputs=trained_on(context.inputs, codec, rows),
        counts=counts,
        seed=context.seed,
    )
    shutil.rmtree(out / GROUND, ignore_errors=True)
    (out / ROWS).unlink(missing_ok=True)
    return StageResult(checkpoint=out / CHECKPOINT, counts=counts, measures=last_measures(out))


def work(folder: Path, key: str = "") -> None:
    """One training process of the job in `folder`.

    Args:
        folder: of the stage.
        key: bearer token of a teacher's endpoint.
    """
    end_with_starter(folder)
    job = from_json((folder / FILE).read_bytes(), StageJob, where=str(folder / FILE))
    settings: Any = msgspec.convert(job.settings, kind_named(job.kind).settings)
    start = Path(job.start) if job.start else None
    tokenizer = load_tokenizer(job.model, start)
    codec = PretrainedCodec(tokenizer, template_text(job.model.template))
    policy = pretrained_policy(job.model, codec, start, job.seed)
    trainer, done = _part(job.kind)(settings, policy, Desk(job.place, job.seed, key))
    save_trained(trainer, codec, job.model, job.place, start, job.seed)
    if trainer.is_world_process_zero():
        (folder / DONE).write_bytes(to_json(done))
    trainer.accelerator.end_training()


def unseen(share: float, note: str) -> None:
    """Progress in a training process: nobody looks at it there."""


def _part(kind: str) -> Part:
    module, _, name = PARTS[kind].partition(":")
    part: Part = getattr(import_module(module), name)
    return part


def check_batch(trl: TrlSettings, rollouts: int, processes: int) -> None:
    """Each update is on the rollouts of one step.

    Raises:
        ConfigError: the batches of all processes together are not `rollouts` rows.
    """
    rows = trl.per_device_train_batch_size * trl.gradient_accumulation_steps * processes
    if rows != rollouts:
        raise ConfigError(
            f"{processes} processes take {rows} rollouts an update, and a step makes {rollouts}",
            remedy="group * groups = batch size * accumulation * processes",
        )
