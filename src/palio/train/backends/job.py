"""One SFT run on TRL is one job on disk, so that one process or many can do it with the same code.

``python -m palio.train.backends.job JOB`` is what a launcher (accelerate, torchrun) starts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from palio.records import IntegrityError, Record, from_json, to_json
from palio.train.backends.arguments import configured
from palio.train.backends.carried import rounds
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.masters import check_launched
from palio.train.backends.merging import lowered, merged
from palio.train.backends.places import sft_trainer
from palio.train.backends.weights import check_vocabulary, load_model, load_tokenizer, widened
from palio.train.backends.whole import as_they_were, check_apart, whole_model
from palio.train.checkpoint import CHECKPOINT
from palio.train.disk import readable, saving
from palio.train.recipe import LoraConfig, PretrainedModel
from palio.train.reporting import OwnRun, ready, run_name
from palio.train.settings import TrlSettings, shipped
from palio.train.stage import TRAINER, append_metrics, trim_metrics

FILE, ROWS, SAVED = "job.json", "rows.msgpack", "saved"
TOLD = "trained.json"
"""What the first training process tells at the end, a `Told`."""


class SftJob(Record, frozen=True):
    """Everything that a training process needs to know.

    Attributes:
        folder: the stage's folder; rows, states and weights are in it.
        start: checkpoint of the stage before; "" for the model's own weights.
        longest: tokens of the longest row.
    """

    stage: str
    folder: str
    model: PretrainedModel
    settings: TrlSettings
    seed: int
    longest: int
    start: str = ""

    @property
    def place(self) -> Path:
        """The stage's folder."""
        return Path(self.folder)


class Told(Record, frozen=True):
    """How far a job was trained.

    Attributes:
        steps: updates.
        tokens: input tokens of all processes, padding included.
    """

    steps: int
    tokens: int


Note = Callable[[float, str], None]


def read_job(folder: Path) -> SftJob:
    """The job of a stage's folder."""
    path = folder / FILE
    return from_json(path.read_bytes(), SftJob, where=str(path))


def run_job(job: SftJob, note: Note) -> None:
    """Train and save the weights, with an adapter merged, in ``saved``, and tell how far.

    Goes on from the newest whole state in ``trainer``.

    Raises:
        IntegrityError: the loss is not a number; the states on disk are those before it.
    """
    from transformers import PrinterCallback, set_seed

    set_seed(job.seed)
    start = Path(job.start) if job.start else None
    codec = PretrainedCodec(load_tokenizer(job.model, start), template_text(job.model.template))
    model, args = _begun(job, start)
    check_vocabulary(codec.tokenizer, model, job.start or job.model.tokenizer or job.model.path)
    trainer = sft_trainer()(
        model=model,
        args=args,
        train_dataset=dataset(job.place),
        processing_class=codec.tokenizer,
        peft_config=adapter(job.model.lora) if job.model.lora else None,
        callbacks=[_watch(job, note)],
    )
    trainer.remove_callback(PrinterCallback)  # standard output belongs to the command
    trainer.train(resume_from_checkpoint=newest_state(job.place / TRAINER))
    if trainer.is_world_process_zero():
        state = trainer.state
        told = Told(steps=state.global_step, tokens=int(state.num_input_tokens_seen))
        (job.place / TOLD).write_bytes(to_json(told))
    save_trained(trainer, codec, job.model, job.place, start, job.seed)


def _begun(job: SftJob, start: Path | None) -> tuple[Any, Any]:
    """The model, and what TRL is told of it.

    Told first of FSDP, transformers lets one process read the weights for all. Told first of ZeRO-3
    it would read them into shares, in DeepSpeed's dtype whatever the recipe's is; DeepSpeed shards
    a whole model as well.
    """
    if job.settings.deepspeed:
        return load_model(job.model, start, job.seed), arguments(job)
    args = arguments(job)
    model = load_model(job.model, start, job.seed)
    return model if job.settings.launch else widened(model, job.model), args


def arguments(job: SftJob) -> Any:
    """TRL's configuration: its defaults are for GPUs, ours run on a CPU.

    Raises:
        ConfigError: TRL does not take what the recipe says.
    """
    from trl import SFTConfig  # type: ignore[attr-defined]

    given = msgspec.to_builtins(job.settings)
    extra = given.pop("extra")
    del given["launch"]
    steps = given.pop("warmup_ratio")
    given["report_to"] = ready(job.settings)
    given["deepspeed"] = shipped(given["deepspeed"]) or None
    if not torch.cuda.is_available() and torch.distributed.is_torchelastic_launched():
        given["ddp_backend"] = "gloo"
    fields = {
        "output_dir": str(job.place / TRAINER),
        "run_name": run_name(job.place),
        "seed": job.seed,
        "data_seed": job.seed,
        "use_cpu": not torch.cuda.is_available(),
        "max_length": job.longest if job.settings.packing else None,
        "save_total_limit": 1,
        "warmup_steps": steps,
        "logging_nan_inf_filter": False,
        "include_num_input_tokens_seen": True,
        "disable_tqdm": True,
        "dataset_kwargs": {"skip_prepare_dataset": not job.settings.packing},
    }
    return configured(SFTConfig, {**fields, **given, **extra}, job.stage)


def adapter(lora: LoraConfig) -> Any:
    """The adapter as PEFT wants it."""
    import peft

    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )


def write_rows(folder: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
    """Keep the rows (ids, labels) for the training processes."""
    (folder / ROWS).write_bytes(msgspec.msgpack.encode(rows))


def dataset(folder: Path) -> Any:
    """The rows as a dataset of ids and labels, -100 where nothing is trained."""
    from datasets import Dataset  # type: ignore[import-untyped]

    rows = msgspec.msgpack.decode((folder / ROWS).read_bytes())
    ids, labels = ([row[at] for row in rows] for at in (0, 1))
    return Dataset.from_dict({"input_ids": ids, "labels": labels})


def newest_state(folder: Path) -> str | None:
    """The newest whole state of the trainer; a half-written one has no trainer_state.json."""
    found = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    whole = sorted(filter(readable, found), key=lambda path: int(path.name.rpartition("-")[2]))
    return str(whole[-1]) if whole else None


def _watch(job: SftJob, note: Note) -> Any:
    """A callback that writes `metrics.jsonl` and stops at a loss that is no number."""
    from transformers import TrainerCallback

    run = OwnRun()

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(
            self,
            args: Any,  # noqa: ARG002
            state: Any,
            control: Any,  # noqa: ARG002
            model: Any = None,
            **_: Any,
        ) -> None:
            check_apart()
            check_launched(model)
            if state.is_world_process_zero:
                trim_metrics(job.place, state.global_step)

        def on_log(
            self,
            args: Any,  # noqa: ARG002
            state: Any,
            control: Any,  # noqa: ARG002
            logs: Any = None,
            **_: Any,
        ) -> None:
            numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float)}
            if "loss" not in numbers:
                return
            broken = [k for k in ("loss", "grad_norm") if not math.isfinite(numbers.get(k, 0.0))]
            if broken:
                raise IntegrityError(
                    f"the {broken[0]} of stage {job.stage!r} is not a number "
                    f"at step {state.global_step}",
                    where=job.folder,
                    remedy="lower the learning rate; the last saved state is still good",
                )
            if state.is_world_process_zero:
                row = {"stage": job.stage, "step": state.global_step, **numbers}
                append_metrics(job.place, row)
                share = state.global_step / max(1, state.max_steps)
                note(share, f"step {state.global_step}, loss {numbers['loss']:.3f}")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            run.end()

    return Watch()


def save_trained(
    trainer: Any,
    codec: PretrainedCodec,
    model: PretrainedModel,
    place: Path,
    start: Path | None = None,
    seed: int = 0,
) -> None:
    """Whole weights, an adapter merged into them, with everything that a server wants.

    In each process of the trainer; the first one writes them to ``saved`` in the stage's folder.

    Args:
        trainer: which has trained.
        codec: of the stage.
        model: the recipe's.
        place: the stage's folder.
        start: checkpoint of the stage before.
        seed: that the stage began with.
    """
    trained = whole_model(trainer, "float32")  # rounded below, where it is known what that takes
    if trained is None:
        return
    folder = place / SAVED
    if model.lora is None:
        trained = lowered(trained, model, start, seed, folder)
    else:
        if trainer.is_deepspeed_enabled and not rounds(model):
            trained = as_they_were(trained, load_model(model, start, seed).state_dict())
        save_adapter(trained, folder)
        trained = merged(trained, model, start, seed, folder, place / CHECKPOINT)
    save_whole(trained, codec, folder)


def save_adapter(model: Any, folder: Path) -> None:
    """The trained adapter, beside the weights that have it merged; not KTO's copy of its start."""
    with saving("the adapter", folder, half=folder):
        model.save_pretrained(folder / "adapter", selected_adapters=["default"])


def save_whole(model: Any, codec: PretrainedCodec, folder: Path) -> None:
    """A folder that transformers and vLLM load: weights, configurations, tokenizer, template."""
    from transformers import GenerationConfig

    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.use_cache = True
    model.generation_config = GenerationConfig(eos_token_id=codec.end, pad_token_id=codec.pad)
    with saving("the weights", folder, half=folder):
        model.save_pretrained(folder)
        codec.tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    from palio.train.backends.starter import end_with_starter

    end_with_starter(Path(sys.argv[1]))
    run_job(read_job(Path(sys.argv[1])), lambda *_: None)
