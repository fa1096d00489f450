"""The last stage: Dr. GRPO with rollouts in the world, outcome reward and credit for each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import torch
from trl.trainer.grpo_config import GRPOConfig

from palio.agents.scripted import ScriptedUpstream
from palio.broker.upstream import HttpUpstream, Upstream
from palio.records import ConfigError, InputError, Profile, Record
from palio.train.rl.advantages import CreditKind
from palio.train.rl.hooks import (
    MetricsFile,
    finished,
    last_state,
    small_trl,
    trl_fields,
)
from palio.train.rl.opening import open_policy
from palio.train.rl.policy import Policy, ServedPolicy
from palio.train.rl.rewards import TeacherPolicy
from palio.train.rl.rollouts import Play, PrefixRoller, Roller, WorldRoller, prefixes_of
from palio.train.rl.trainer import Scheme, StepGrpoTrainer
from palio.train.seen import Witness, rolled_digest
from palio.train.settings import TrlSettings
from palio.train.stage import (
    Context,
    Kind,
    Report,
    StageResult,
    StageSettings,
    read_metrics,
)

Reward = Literal["outcome", "on_policy", "prefix"]


class TeacherSettings(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Who is asked for the next step on the student's own history.

    Attributes:
        model: its name; a scripted one where there is no address.
        base_url: OpenAI-compatible server; "": the scripted models.
        seed: of the scripted models.
    """

    model: str = "scripted-careful"
    base_url: str = ""
    seed: int = 0


class GrpoSettings(StageSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Dr. GRPO.

    Attributes:
        reward: `outcome`: strict success alone; `on_policy`: also a credit for each step that the
            teacher would take on the student's history; `prefix`: one turn after a teacher's
            prefix by ShoppingBench's formula, without a world.
        problems: training problems, the kinds evenly; 0: all. In prefix mode: teacher's rows.
        group: rollouts of a problem.
        groups: problems of a step.
        outcome_weight: lambda of A = turn_weight * A_turn + lambda * A_outcome.
        credit: what a turn answers for.
        profile: whose strict success is the outcome.
        brevity: bonus of a success in one turn, 1 / n of it in n turns; failures never earn it.
        longest: tokens of a conversation.
        probe: rollouts of a step on which KL and the sampler's gap are measured.
        probe_every: steps from one such measurement to the next.
        watch: stop when calls a rollout stay below this share of the first step's; 0: never.
        base_url: vLLM server that samples; "" for our engine, or the model itself.
        served_model: the model's name at `base_url`.
        threads: rollouts in flight.
    """

    reward: Reward = "on_policy"
    problems: int = 0
    group: int = 8
    groups: int = 16
    turn_weight: float = 0.3
    outcome_weight: float = 1.0
    credit: CreditKind = "step"
    teacher: TeacherSettings = TeacherSettings()
    temperature: float = 1.0
    max_tokens: int = 160
    longest: int = 1200
    profile: Profile = "strict"
    brevity: float = 0.0
    probe: int = 16
    probe_every: int = 1
    watch: float = 0.5
    base_url: str = ""
    served_model: str = ""
    threads: int = 64
    seconds: float = 300.0
    trl: TrlSettings = TrlSettings(
        learning_rate=1e-4,
        lr_scheduler_type="constant_with_warmup",
        max_steps=50,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=4,
    )

    def __post_init__(self) -> None:
        batch = self.trl.per_device_train_batch_size * self.trl.gradient_accumulation_steps
        if self.group < 2:
            raise ConfigError("a group needs at least 2 rollouts to have a mean of others")
        if self.temperature <= 0:
            raise ConfigError("rollouts of a group must differ: temperature above 0")
        if batch % self.group or self.group * self.groups % batch:
            raise ConfigError(
                f"{self.groups} groups of {self.group} do not fill batches of {batch}",
                remedy="group * groups = batch size * accumulation (* processes)",
            )

    def play(self) -> Play:
        """How rollouts are made."""
        return Play.of(self)


def dr_grpo_arguments(settings: GrpoSettings, out: Path, seed: int) -> GRPOConfig:
    """TRL's arguments for exactly Dr. GRPO: no std, no length normalisation, no KL term."""
    fields = trl_fields(settings.trl, out, seed)
    fields |= {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "beta": 0.0,
        "num_generations": settings.group,
        "max_completion_length": settings.longest,
        "temperature": settings.temperature,
        "disable_dropout": True,
        "shuffle_dataset": True,
    }
    if settings.base_url:
        fields |= {"use_vllm": True, "vllm_mode": "server"}
        fields["vllm_server_base_url"] = settings.base_url
    return GRPOConfig(**fields)


def train_grpo(
    policy: Policy,
    roller: Roller,
    settings: GrpoSettings,
    out: Path,
    *,
    seed: int,
    report: Report,
    threads: int = 1,
) -> StepGrpoTrainer:
    """Train a policy in place; goes on from the newest state in `out`.

    Args:
        policy: the model, at the stage's start.
        roller: rollouts, and what they are worth.
        settings: all choices.
        out: the stage's folder; metrics and states go there.
        seed: of the trainer and the rollouts.
        report: progress.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    before = read_metrics(out)
    turns = 0.0 if settings.reward != "on_policy" else settings.turn_weight
    scheme = Scheme(
        group=settings.group,
        turn_weight=turns,
        outcome_weight=settings.outcome_weight,
        credit=settings.credit,
        seed=seed,
        probe=settings.probe,
        probe_every=settings.probe_every,
        watch=settings.watch,
        first_calls=before[0].get("calls/per_rollout") if before else None,
    )
    start = None if hasattr(policy.model, "peft_config") else policy.copy()
    trainer = StepGrpoTrainer(
        policy,
        roller,
        scheme,
        start=start,
        args=dr_grpo_arguments(settings, out, seed),
        keys=roller.keys,
        callbacks=[MetricsFile(out, report)],
    )
    models = [policy.model] if start is None else [policy.model, start]
    low, heat = settings.trl.bf16, settings.temperature
    with policy.kernels(models, temperature=heat, low=low, threads=threads):
        trainer.train(resume_from_checkpoint=last_state(out))
    return trainer


def run_grpo(
    settings: GrpoSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """The stage of a recipe.

    Raises:
        InputError: there is no checkpoint to start from, or no training problems.
        IntegrityError: the loss is not a number.
        UpstreamError: no rollout of a step could be scored, or the teacher answered for no turn.
    """
    policy = open_policy(context, previous, slots=settings.threads)
    if settings.base_url:
        name = settings.served_model or str(previous)
        policy = ServedPolicy(policy, settings.base_url, name)
    with teacher_of(settings.teacher, context.teacher_key) as upstream:
        roller = Witness(make_roller(settings, context, policy, upstream), out)
        trainer = train_grpo(
            policy,
            roller,
            settings,
            out,
            seed=context.seed,
            report=report,
            threads=context.threads,
        )
    steps = trainer.state.global_step
    counts = {"steps": steps, "rollouts": steps * settings.group * settings.groups}
    counts["stopped_early"] = int(bool(trainer.stopped))
    return finished(policy, context, out, counts, rolled_digest(out))


@contextmanager
def teacher_of(settings: TeacherSettings, key: str) -> Iterator[Upstream]:
    """The teacher's endpoint, or the scripted models."""
    if not settings.base_url:
        yield ScriptedUpstream(settings.seed)
        return
    with HttpUpstream(settings.base_url, key) as upstream:
        yield upstream


def make_roller(
    settings: GrpoSettings, context: Context, policy: Policy, upstream: Upstream
) -> Roller:
    """What the stage rolls out.

    Raises:
        InputError: the run was given no training problems, or no rows in prefix mode.
    """
    play = settings.play()
    if settings.reward == "prefix":
        rows = list(context.rows)[: settings.problems or None]
        prefixes = [
            prefix
            for number, row in enumerate(rows)
            for prefix in prefixes_of(f"{row.problem_id}/{number}", row.typed(), row.offered)
        ]
        if not prefixes:
            raise InputError("no row of the corpus has a turn with a call")
        return PrefixRoller(prefixes, policy.codec, play)
    if context.ground is None or not context.ground.problems:
        raise InputError(
            "rollouts need training problems and their catalogues",
            remedy='name them with --suite and --catalogue, or use reward = "prefix"',
        )
    problems = context.ground.evenly(settings.problems, f"grpo-{context.seed}")
    named = settings.teacher
    teacher = TeacherPolicy(upstream, named.model, where=named.base_url)
    asked = teacher if settings.reward == "on_policy" else None
    return WorldRoller(problems, context.ground, policy.codec, play, asked)


def shrink(settings: GrpoSettings) -> GrpoSettings:
    """Two updates on two groups of two."""
    trl = small_trl(settings.trl)
    return msgspec.structs.replace(
        settings,
        trl=trl,
        group=2,
        groups=2,
        problems=2,
        max_tokens=24,
        longest=max(settings.longest, 3000),
        base_url="",
        probe=2,
    )


GRPO = Kind(settings=GrpoSettings, run=run_grpo, shrink=shrink, ground=True, own=True)
