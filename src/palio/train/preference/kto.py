"""KTO on the policy's own rollouts: strict success or not, no pairs, beta 0.02."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from transformers import PrinterCallback
from trl.trainer.kto_config import KTOConfig

from palio.records import ConfigError, InputError
from palio.train.backends.arguments import check_taken, configured
from palio.train.context import Context, Kind, ground_of
from palio.train.preference.labels import (
    Labelled,
    class_weights,
    left_out,
    mixed_order,
    read_labels,
    sample_labels,
    summary,
    usable,
    write_labels,
)
from palio.train.preference.trainer import (
    MaskedCollator,
    MaskedKtoTrainer,
    dataset_digest,
    kto_dataset,
)
from palio.train.rl.completions import SAMPLER_KEY, check_completions
from palio.train.rl.hooks import (
    MetricsFile,
    finished,
    last_state,
    small_trl,
    trl_fields,
)
from palio.train.rl.opening import open_policy
from palio.train.rl.policy import Policy, ServedPolicy
from palio.train.rl.processes import ROWS, Desk, Done, sealed, trained_elsewhere, unseen
from palio.train.rl.rollouts import Play, WorldRoller
from palio.train.rollouts import settle
from palio.train.seen import Witness
from palio.train.settings import Sampling, TrlSettings
from palio.train.stage import Report, StageResult, StageSettings

_SAMPLING = 0.5
"""Share of the stage that sampling takes in its progress."""


class KtoSettings(StageSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """KTO.

    Attributes:
        sampling: how training problems are rolled out; a server at `base_url` must hold the
            checkpoint of the stage before and take and give token ids, as vLLM does.
        beta: weight of the distance to the start; the paper's 0.02 (0.01 for 2 epochs fell).
        longest: tokens of a rollout; longer ones are left out and counted as `too_long`.
        trl: `per_device_train_batch_size` of at least 2 holds both labels.
    """

    sampling: Sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=160)
    beta: float = 0.02
    longest: int = 1200
    trl: TrlSettings = TrlSettings(
        learning_rate=2e-5, per_device_train_batch_size=16, gradient_accumulation_steps=2
    )

    def __post_init__(self) -> None:
        self.trl.check_extra("kto")
        if self.beta <= 0:
            raise ConfigError("beta must be above 0")
        if self.trl.per_device_train_batch_size < 2:
            raise ConfigError("a batch needs at least 2 rows, one of each label")
        if self.sampling.temperature == 0 and self.sampling.samples > 1:
            raise ConfigError("greedy samples of a problem are copies: set a temperature above 0")

    def play(self) -> Play:
        """How rollouts are made."""
        tokens = self.sampling.max_tokens or 1024
        return Play.of(self.sampling, max_tokens=tokens, longest=self.longest)


def kto_arguments(
    settings: KtoSettings, out: Path, seed: int, weights: tuple[float, float]
) -> KTOConfig:
    """TRL's arguments.

    Raises:
        ConfigError: TRL does not take what the recipe says.
    """
    fields = trl_fields(settings.trl, out, seed) | {
        "loss_type": "kto",
        "beta": settings.beta,
        "desirable_weight": weights[0],
        "undesirable_weight": weights[1],
        "max_length": None,
        "disable_dropout": True,
    }
    return configured(KTOConfig, fields, out.name)


def ordered(rows: Sequence[Labelled], settings: KtoSettings, seed: int) -> list[Labelled]:
    """The rows that are trained on, every batch with both labels.

    Raises:
        InputError: all rollouts have the same label, or too few are left for one batch.
    """
    kept = usable(rows, settings.longest)
    if not kept:
        raise InputError(
            f"none of {len(rows)} rollouts can be trained on: unscored, or over {settings.longest} "
            "tokens",
            remedy="raise `longest` in the recipe",
        )
    batch = settings.trl.per_device_train_batch_size
    return [kept[at] for at in mixed_order([bool(row.label) for row in kept], batch, seed)]


def train_kto(
    policy: Policy,
    rows: Sequence[Labelled],
    settings: KtoSettings,
    out: Path,
    *,
    seed: int,
    report: Report,
    threads: int = 1,
) -> MaskedKtoTrainer:
    """Train a policy in place on labelled rollouts; goes on from the newest state in `out`.

    Args:
        policy: the model at the stage's start; it is also the reference.
        rows: labelled rollouts; those that are unscored or too long are left out.
        settings: all choices.
        out: the stage's folder.
        seed: of trainer and order.
        report: progress.
        threads: of torch.

    Raises:
        InputError: all rollouts have the same label, or too few are left for one batch.
    """
    torch.set_num_threads(threads)
    chosen = ordered(rows, settings, seed)
    batch = settings.trl.per_device_train_batch_size
    right = sum(bool(row.label) for row in chosen)
    weights = class_weights(right, len(chosen) - right)
    start = None if hasattr(policy.model, "peft_config") else policy.copy()
    trainer = MaskedKtoTrainer(
        model=policy.model,
        ref_model=start,
        args=kto_arguments(settings, out, seed, weights),
        data_collator=MaskedCollator(pad_token_id=policy.codec.pad),
        train_dataset=kto_dataset(chosen, batch),
        processing_class=policy.tokenizer,
        callbacks=[MetricsFile(out, report)],
    )
    trainer.remove_callback(PrinterCallback)
    models = [policy.model] if start is None else [policy.model, start]
    with policy.kernels(models, temperature=1.0, low=settings.trl.bf16, threads=threads):
        if trainer.args.num_train_epochs > 1:
            trainer.ask_reference()
        trainer.train(resume_from_checkpoint=last_state(out))
    return trainer


def run_kto(
    settings: KtoSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """The stage of a recipe: sample, label, train.

    Raises:
        InputError: there is no checkpoint to start from, no training problems, or one label only.
        UpstreamError: the server at `sampling.base_url` does not answer.
        IntegrityError: the loss is not a number.
    """
    sampling, ground = settings.sampling, ground_of(context)
    policy = open_policy(context, previous, slots=sampling.threads)
    problems = ground.evenly(sampling.problems, f"kto-{context.seed}")
    roller = Witness(WorldRoller(problems, ground, policy.codec, settings.play()), out)
    asked = policy
    if sampling.base_url:
        name = sampling.model or str(previous)
        asked = ServedPolicy(policy, sampling.base_url, name, key=context.keys.sampler)
    with asked.sampler(None) as sampler:
        rows = sample_labels(
            roller,
            sampler,
            out,
            samples=sampling.samples,
            seed=context.seed,
            progress=lambda share: report(_SAMPLING * share, "rollouts"),
        )
    counts = {**summary(rows), **left_out(rows, settings.longest)}
    rows = made_up(rows) if context.recipe.dry else rows
    ordered(rows, settings, context.seed)  # or else the next run shall sample what is missing
    settle(out)
    if settings.trl.launch:
        policy.model.to("meta")  # the training processes have their own, and need the room
        material = lambda: write_labels(out / ROWS, rows)  # noqa: E731
        done = trained_elsewhere("kto", settings, context, previous, out, material)
        return sealed(context, previous, out, {**counts, **done.counts}, done.rows)
    trainer = train_kto(
        policy,
        rows,
        settings,
        out,
        seed=context.seed,
        report=lambda share, note: report(_SAMPLING + (1 - _SAMPLING) * share, note),
        threads=context.threads,
    )
    told = _done(trainer)
    return finished(policy, context, out, {**counts, **told.counts}, told.rows)


def work_kto(settings: KtoSettings, policy: Policy, desk: Desk) -> tuple[MaskedKtoTrainer, Done]:
    """One of the stage's training processes, `processes.Part`."""
    rows = read_labels(desk.out / ROWS)
    trainer = train_kto(policy, rows, settings, desk.out, seed=desk.seed, report=unseen)
    return trainer, _done(trainer)


def _done(trainer: MaskedKtoTrainer) -> Done:
    trained = trainer.train_dataset
    counts = {"steps": trainer.state.global_step, "trained_on": len(trained)}
    return Done(counts, dataset_digest(trained))


def made_up(rows: Sequence[Labelled]) -> list[Labelled]:
    """Labels in turn: a dry run's random weights get nothing right, and KTO needs both."""
    return [msgspec.structs.replace(row, label=number % 2 == 0) for number, row in enumerate(rows)]


def shrink(settings: KtoSettings) -> KtoSettings:
    """One batch of two problems' rollouts."""
    sampling = msgspec.structs.replace(
        settings.sampling, problems=2, samples=2, max_tokens=24, base_url=""
    )
    trl = small_trl(settings.trl)
    longest = max(settings.longest, 3000)
    return msgspec.structs.replace(settings, sampling=sampling, trl=trl, longest=longest)


def needed(settings: KtoSettings) -> None:
    """Arguments that TRL has, and a server that can be asked for completions of token ids."""
    check_taken(KTOConfig, settings.trl)
    sampling = settings.sampling
    if sampling.base_url:
        setting, heat = "sampling.base_url", sampling.temperature
        check_completions(sampling.base_url, heat, setting, on_key=SAMPLER_KEY)


KTO = Kind(
    settings=KtoSettings,
    run=run_kto,
    shrink=shrink,
    ground=True,
    own=True,
    asks=lambda settings, previous: settings.sampling.endpoint(previous),
    needs=needed,
)
