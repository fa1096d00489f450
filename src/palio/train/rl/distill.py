"""On-policy distillation by TRL's trainer: what the paper tried first, and replaced.

The student rolls out in the world; at each token that it sampled, its distribution is pulled to the
one that a teacher with the same vocabulary has there (reverse KL by default).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from datasets import Dataset  # type: ignore[import-untyped]
from torch import nn
from transformers import PrinterCallback
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer

from palio.broker.upstream import shown_url
from palio.records import ConfigError, Profile
from palio.train.backends.arguments import check_taken, configured
from palio.train.backends.sharing import check_in_place
from palio.train.context import Context, Kind, ground_of
from palio.train.disk import WholeStates
from palio.train.ground import Ground
from palio.train.rl.audit import audit_means, success_rate
from palio.train.rl.hooks import (
    MetricsFile,
    audits_of,
    finished,
    last_state,
    rolled,
    small_trl,
    trl_fields,
)
from palio.train.rl.material import GROUND, read_ground, write_ground
from palio.train.rl.opening import open_policy, open_teacher, teacher_digests
from palio.train.rl.order import EpochSampler, check_enough
from palio.train.rl.policy import Policy
from palio.train.rl.processes import Desk, Done, sealed, trained_elsewhere, unseen
from palio.train.rl.rollouts import Play, Roller, Rollout, WorldRoller
from palio.train.seen import Witness, rolled_digest
from palio.train.settings import TrlSettings
from palio.train.stage import Report, StageResult, StageSettings


class DistillSettings(StageSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """On-policy distillation.

    Attributes:
        teacher: checkpoint, stage or run folder, "bundled", ``package:NAME/path``, or a hub name,
            with the same vocabulary; "": the student's own start, which holds it where it is. A
            stage is held to the teacher that it began with (`opening.teacher_digests`).
        divergence: 0 forward KL, 0.5 Jensen-Shannon, 1 reverse KL (TRL's `beta`).
        problems: training problems, the kinds evenly; 0: all.
        longest: tokens of a conversation.
        profile: whose strict success is logged; it is not trained on.
        threads: rollouts in flight.
    """

    teacher: str = ""
    divergence: float = 1.0
    problems: int = 0
    temperature: float = 1.0
    max_tokens: int = 160
    longest: int = 1200
    profile: Profile = "strict"
    threads: int = 64
    seconds: float = 300.0
    trl: TrlSettings = TrlSettings(
        learning_rate=1e-4,
        lr_scheduler_type="constant_with_warmup",
        max_steps=50,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
    )

    def __post_init__(self) -> None:
        self.trl.check_extra("distill")
        if self.problems:
            self.check_problems(self.problems, 1)
        if not 0 <= self.divergence <= 1:
            raise ConfigError("divergence must be in [0, 1]")
        if self.temperature <= 0:
            raise ConfigError("on-policy rollouts are sampled: temperature above 0")
        if self.max_tokens < 1:
            raise ConfigError("max_tokens must be at least 1: a turn has tokens")
        if "://" in self.teacher:
            raise ConfigError(
                "a server cannot be distilled from: its distribution at each token is needed",
                where=shown_url(self.teacher),
                remedy="name a checkpoint, or learn from a server with a teacher or grpo stage",
            )

    def play(self) -> Play:
        """How rollouts are made."""
        return Play.of(self)

    def check_problems(self, found: int, processes: int) -> None:
        """Each step is on as many different problems as all processes take rollouts.

        Raises:
            ConfigError: there are fewer.
        """
        batch = self.trl.per_device_train_batch_size * self.trl.gradient_accumulation_steps
        remedy = "lower batch size * accumulation, or give the stage more problems"
        check_enough(found, batch * processes, "problems", remedy)


class WorldDistillationTrainer(WholeStates, DistillationTrainer):
    """`DistillationTrainer` over rollouts of a roller.

    Args:
        policy: the student.
        teacher: a model with the same vocabulary.
        roller: makes rollouts of the keys in the dataset's `prompt` column.
        args: TRL's.
        seed: of the rollouts.
        more: further arguments of `DistillationTrainer`.
    """

    def __init__(
        self,
        policy: Policy,
        teacher: nn.Module,
        roller: Roller,
        *,
        args: DistillationConfig,
        seed: int,
        **more: Any,
    ) -> None:
        self.policy, self.roller, self._rollout_seed = policy, roller, seed
        self.rolled: list[Rollout] = []
        super().__init__(
            model=policy.model,
            teacher_model=teacher,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": list(roller.keys)}),
            processing_class=policy.tokenizer,
            **more,
        )
        self.remove_callback(PrinterCallback)

    def _get_train_sampler(self, dataset: Any = None) -> EpochSampler:
        """TRL's, in the same order after a kill."""
        return EpochSampler.of(super()._get_train_sampler(dataset))

    def _generate(self, prompts: Sequence[str]) -> tuple[Any, ...]:
        """TRL's generation: here rollouts in the world, as they were sampled."""
        self.rolled = rolled(self, self.policy, self.roller, prompts, self._rollout_seed)
        found = audit_means(audits_of(self.rolled))
        known = [None if each.outcome is None else each.success for each in self.rolled]
        found |= success_rate(gather_object(known))
        for name, value in found.items():
            self._metrics["train"][name].append(value)
        return (
            [each.prompt for each in self.rolled],
            [each.completion for each in self.rolled],
            [[int(one) for one in each.mask] for each in self.rolled],
            None,
            [],
        )


def train_distill(
    policy: Policy,
    teacher: nn.Module,
    roller: Roller,
    settings: DistillSettings,
    out: Path,
    *,
    seed: int,
    report: Report,
    threads: int = 1,
) -> WorldDistillationTrainer:
    """Train a policy in place; goes on from the newest state in `out`.

    Raises:
        ConfigError: TRL does not take what the recipe says, or there are fewer problems than a
            step takes.
    """
    torch.set_num_threads(threads)
    fields = trl_fields(settings.trl, out, seed) | {
        "beta": settings.divergence,
        "temperature": settings.temperature,
        "max_completion_length": settings.longest,
        "disable_dropout": True,
    }
    arguments = configured(DistillationConfig, fields, out.name)
    trainer = WorldDistillationTrainer(
        policy,
        teacher,
        roller,
        args=arguments,
        seed=seed,
        callbacks=[MetricsFile(out, report)],
    )
    settings.check_problems(len(roller.keys), trainer.accelerator.num_processes)
    trainer.train(resume_from_checkpoint=last_state(out))
    return trainer


def run_distill(
    settings: DistillSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """The stage of a recipe.

    Raises:
        InputError: no checkpoint to start from, no training problems, or no teacher.
        ConfigError: the teacher has another vocabulary, or there are fewer problems than a step
            takes.
        IntegrityError: the loss is not a number.
    """
    ground = ground_of(context)
    settings.check_problems(len(ground.problems), 1)
    if settings.trl.launch:
        material = lambda: write_ground(ground, out / GROUND)  # noqa: E731
        done = trained_elsewhere("distill", settings, context, previous, out, material)
        return sealed(context, previous, out, done.counts, rolled_digest(out))
    policy = open_policy(context, previous)
    trainer = _distilled(policy, ground, settings, context.seed, out, report, context.threads)
    return finished(policy, context, out, _counts(trainer, settings), rolled_digest(out))


def work_distill(
    settings: DistillSettings, policy: Policy, desk: Desk
) -> tuple[WorldDistillationTrainer, Done]:
    """One of the stage's training processes, `processes.Part`."""
    ground = read_ground(desk.out / GROUND)
    trainer = _distilled(policy, ground, settings, desk.seed, desk.out, unseen, 1)
    return trainer, Done(_counts(trainer, settings))


def _distilled(
    policy: Policy,
    ground: Ground,
    settings: DistillSettings,
    seed: int,
    out: Path,
    report: Report,
    threads: int,
) -> WorldDistillationTrainer:
    teacher = open_teacher(settings.teacher, policy) if settings.teacher else policy.copy()
    problems = ground.evenly(settings.problems, f"distill-{seed}")
    roller = Witness(WorldRoller(problems, ground, policy.codec, settings.play()), out)
    return train_distill(
        policy,
        teacher,
        roller,
        settings,
        out,
        seed=seed,
        report=report,
        threads=threads,
    )


def _counts(trainer: WorldDistillationTrainer, settings: DistillSettings) -> dict[str, int]:
    steps, processes = trainer.state.global_step, trainer.accelerator.num_processes
    batch = settings.trl.per_device_train_batch_size * settings.trl.gradient_accumulation_steps
    return {"steps": steps, "rollouts": steps * batch * processes}


def shrink(settings: DistillSettings) -> DistillSettings:
    """Two updates of four rollouts, with the student as its own teacher."""
    return msgspec.structs.replace(
        settings,
        trl=small_trl(settings.trl),
        teacher="",
        problems=4,
        max_tokens=24,
        longest=max(settings.longest, 3000),
    )


def needed(settings: DistillSettings) -> None:
    """Arguments that TRL has, and whole weights to sample from."""
    check_taken(DistillationConfig, settings.trl)
    check_in_place(settings.trl)


DISTILL = Kind(
    settings=DistillSettings,
    run=run_distill,
    shrink=shrink,
    ground=True,
    own=True,
    reads=lambda settings: teacher_digests(settings.teacher),
    needs=needed,
)
