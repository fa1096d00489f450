"""What every stage on TRL shares: arguments fit for CPU, a step's rollouts, metrics, resume."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from palio.records import IntegrityError
from palio.train.backends.masters import check_launched
from palio.train.backends.merging import rounding_counts
from palio.train.backends.sharing import sharded_policy
from palio.train.backends.whole import check_apart
from palio.train.checkpoint import CHECKPOINT
from palio.train.context import Context
from palio.train.disk import readable
from palio.train.precision import multiplies_bfloat16
from palio.train.reporting import OwnRun, ready, run_name
from palio.train.rl.audit import Audit
from palio.train.rl.policy import Policy, ServedPolicy
from palio.train.rl.rollouts import Roller, Rollout, checked, rollout_seed
from palio.train.rows import trained_on
from palio.train.settings import TrlSettings, shipped
from palio.train.stage import (
    STATES,
    Report,
    StageResult,
    append_metrics,
    check_trained,
    read_metrics,
    trim_metrics,
)


def trl_fields(
    trl: TrlSettings, out: Path, seed: int, *, cuda: bool | None = None
) -> dict[str, Any]:
    """Fields of any of TRL's configuration classes.

    TRL's defaults are a GPU's (bf16, gradient checkpointing); here they are off unless asked for.

    Args:
        trl: the recipe's settings.
        out: the stage's folder.
        seed: of the trainer.
        cuda: whether there is a GPU; None: look.

    Raises:
        MissingDependencyError: what `report_to` names does not work here.
    """
    on_gpu = torch.cuda.is_available() if cuda is None else cuda
    fields: dict[str, Any] = {
        "output_dir": str(out / STATES),
        "use_liger_kernel": trl.use_liger_kernel,
        "seed": seed,
        "data_seed": seed,
        "num_train_epochs": trl.num_train_epochs,
        "max_steps": trl.max_steps,
        "learning_rate": trl.learning_rate,
        "lr_scheduler_type": trl.lr_scheduler_type,
        "warmup_steps": trl.warmup_ratio,  # transformers 5: below 1 it is a share
        "per_device_train_batch_size": trl.per_device_train_batch_size,
        "gradient_accumulation_steps": trl.gradient_accumulation_steps,
        "weight_decay": trl.weight_decay,
        "max_grad_norm": trl.max_grad_norm,
        "bf16": trl.bf16 and (on_gpu or bool(trl.launch) or multiplies_bfloat16()),
        "gradient_checkpointing": trl.gradient_checkpointing,
        "use_cpu": not on_gpu,
        "logging_steps": trl.logging_steps,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "save_steps": trl.save_steps,
        "save_total_limit": 2,
        "report_to": ready(trl),
        "run_name": run_name(out),
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        "average_tokens_across_devices": False,
    }
    if not on_gpu and torch.distributed.is_torchelastic_launched():
        fields["ddp_backend"] = "gloo"
    if trl.deepspeed:
        fields["deepspeed"] = shipped(trl.deepspeed)
    return {**fields, **trl.extra}


def rolled(
    trainer: Trainer, policy: Policy, roller: Roller, keys: Sequence[str], seed: int
) -> list[Rollout]:
    """One rollout for each key, with the weights as they stand; this process's part of a step.

    Raises:
        ConfigError: this process has but a share of the weights, and no server samples.
        UpstreamError: of all processes' rollouts not one could be scored.
    """
    if not isinstance(policy, ServedPolicy) and sharded(trainer):
        raise sharded_policy()
    trainer.accelerator.wait_for_everyone()  # the first process gives a server the new weights
    step, first = trainer.state.global_step, trainer.accelerator.process_index * len(keys)
    seeds = [rollout_seed(seed, step, key, first + number) for number, key in enumerate(keys)]
    with policy.sampler(trainer) as sampler:
        made = roller.roll(keys, seeds, sampler)
    return checked(made, policy.codec.end, gather_object)


def audits_of(rollouts: Sequence[Rollout]) -> list[Audit]:
    """Audit counts of a step, those of the other processes too: all come to the same end.

    An unscored rollout has none: the calls that it did not make say nothing of the policy.
    """
    scored = [rollout for rollout in rollouts if rollout.outcome is not None]
    own = [rollout.audit for rollout in scored if rollout.audit is not None]
    everyone: list[Audit] = gather_object(own)
    return everyone


def sharded(trainer: Trainer) -> bool:
    """Whether each process of the trainer holds but a share of the weights."""
    state: Any = trainer.accelerator.state
    plugin = getattr(state, "deepspeed_plugin", None)
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


class MetricsFile(TrainerCallback):  # type: ignore[misc]
    """Appends what the trainer logs to the stage's `metrics.jsonl`; a loss that is NaN stops it.

    Args:
        out: the stage's folder.
        report: progress of the stage.
    """

    def __init__(self, out: Path, report: Report) -> None:
        self._out, self._report, self._run = out, report, OwnRun()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **_: Any,
    ) -> None:
        """Drop lines beyond the state that the run goes on from."""
        del args, control
        check_apart()
        check_launched(model)
        if state.is_world_process_zero:
            trim_metrics(self._out, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """One line a step."""
        del args, control
        found = {name: value for name, value in (logs or {}).items() if value is not None}
        bad = [n for n in ("loss", "grad_norm") if not math.isfinite(float(found.get(n, 0.0)))]
        if bad:
            raise IntegrityError(
                f"{bad[0]} is not a number at step {state.global_step}",
                where=str(self._out),
                remedy="lower the learning rate; the last saved state is still good",
            )
        if not state.is_world_process_zero or "train_runtime" in found:
            return
        row = {n: _significant(v) if isinstance(v, float) else v for n, v in found.items()}
        append_metrics(self._out, {"step": state.global_step, **row})
        shown = [f"{n} {row[n]:.3g}" for n in ("loss", "reward", "step_reward") if n in row]
        if row.get("step_reward/uncredited"):
            shown.append(f"teacher silent for {row['step_reward/uncredited']:.0%} of the turns")
        self._report(min(1.0, state.global_step / max(1, state.max_steps)), ", ".join(shown))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The next stage of this process reports to a run of its own."""
        del args, state, control
        self._run.end()


def last_state(out: Path) -> str | None:
    """The newest complete state of a stage's trainer; None: start from the beginning."""
    folder = out / STATES
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    while found is not None and not _complete(Path(found)):
        newest = Path(found)
        aside = newest.with_name(f"broken-{newest.name}")
        shutil.rmtree(aside, ignore_errors=True)  # of an earlier kill at the same step
        with suppress(FileNotFoundError):  # another process of the same trainer was first
            newest.rename(aside)
        found = get_last_checkpoint(str(folder))
    return found


def finished(
    policy: Policy, context: Context, out: Path, counts: dict[str, int], rows: str
) -> StageResult:
    """Save the trained policy, with the digest of the rows that it was trained on.

    Raises:
        InputError: there was no update.
    """
    check_trained(counts["steps"], out)
    folder = out / CHECKPOINT
    policy.save(
        folder,
        config=context.recipe.prefix(context.number),
        inputs=trained_on(context.inputs, policy.codec, rows),
        counts=counts,
        seed=context.seed,
    )
    counts = counts | rounding_counts(folder)
    return StageResult(checkpoint=folder, counts=counts, measures=last_measures(out))


def _complete(folder: Path) -> bool:
    """`trainer_state.json` is what transformers writes last."""
    try:
        json.loads((folder / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return readable(folder) and (any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")))


def last_measures(out: Path, steps: int = 10) -> dict[str, float]:
    """Means of the last steps' measurements."""
    rows = read_metrics(out)[-steps:]
    names = sorted({name for row in rows for name in row if _is_shown(name)})
    means = {}
    for name in names:
        found = [float(row[name]) for row in rows if name in row]
        means[name] = _significant(sum(found) / len(found))
    return means


def _significant(value: float) -> float:
    """Six significant digits, however small: learning rates and divergences are 1e-6 and less."""
    return float(f"{value:.6g}")


def _is_shown(name: str) -> bool:
    heads = ("reward", "success", "step_reward", "groups/", "calls/", "audit/", "kl_to_start")
    return name.startswith((*heads, "sampling/logp_gap")) and not name.startswith("rewards/")


def small_trl(trl: TrlSettings) -> TrlSettings:
    """Arguments of a dry run: two updates of four rows."""
    return msgspec.structs.replace(
        trl,
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        save_steps=1,
        report_to=(),
        bf16=False,
        gradient_checkpointing=False,
        deepspeed="",
        launch=(),
    )
