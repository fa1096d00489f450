"""The last stage: Dr. GRPO with rollouts in the world, outcome reward and credit for each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec
import torch
from trl.trainer.grpo_config import GRPOConfig

from palio.agents.scripted import ScriptedUpstream
from palio.broker.upstream import HttpUpstream, Upstream
from palio.corpus.rows import CorpusRow, read_rows
from palio.records import (
    ConfigError,
    FaultCode,
    InputError,
    MissingDependencyError,
    PalioError,
    Profile,
    Record,
    UpstreamError,
    to_json,
)
from palio.train.backends.job import configured
from palio.train.ground import Ground
from palio.train.rl.advantages import CreditKind
from palio.train.rl.hooks import (
    MetricsFile,
    finished,
    last_state,
    small_trl,
    trl_fields,
)
from palio.train.rl.material import GROUND, read_ground, write_ground
from palio.train.rl.opening import open_policy
from palio.train.rl.policy import Policy, ServedPolicy
from palio.train.rl.processes import (
    ROWS,
    Desk,
    Done,
    check_batch,
    sealed,
    trained_elsewhere,
    unseen,
)
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
        spread = bool(self.trl.launch)  # a group may lie in several processes
        if (batch % self.group and not spread) or self.group * self.groups % batch:
            raise ConfigError(
                f"{self.groups} groups of {self.group} do not fill batches of {batch}",
                remedy="group * groups = batch size * accumulation (* processes)",
            )

    def play(self) -> Play:
        """How rollouts are made."""
        return Play.of(self)


def dr_grpo_arguments(settings: GrpoSettings, out: Path, seed: int) -> GRPOConfig:
    """TRL's arguments for exactly Dr. GRPO: no std, no length normalisation, no KL term.

    Raises:
        ConfigError: TRL does not take what the recipe says.
    """
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
    return configured(GRPOConfig, fields, out.name)


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
    args = dr_grpo_arguments(settings, out, seed)
    with _pushing(settings.base_url):
        trainer = StepGrpoTrainer(
            policy,
            roller,
            scheme,
            start=start,
            args=args,
            keys=roller.keys,
            callbacks=[MetricsFile(out, report)],
        )
    processes = trainer.accelerator.num_processes
    if processes > 1:
        check_batch(settings.trl, settings.group * settings.groups, processes)
    models = [policy.model] if start is None else [policy.model, start]
    low, heat = settings.trl.bf16, settings.temperature
    with policy.kernels(models, temperature=heat, low=low, threads=threads):
        trainer.train(resume_from_checkpoint=last_state(out))
    return trainer


def check_vllm(settings: GrpoSettings) -> None:
    """Refuse `base_url` where its needs are not met, before anything is loaded; see `run_grpo`."""
    if settings.base_url and find_spec("vllm") is None:
        raise MissingDependencyError(
            "`base_url` of grpo needs vLLM in this process too: its code sends the weights",
            remedy="pip install 'trl[vllm]', or leave `base_url` empty: the model itself samples",
        )


@contextmanager
def _pushing(url: str) -> Iterator[None]:
    """TRL opens the way of the weights to the server as its trainer is made.

    Raises:
        UpstreamError: the server is not there, or was not started to receive weights.
    """
    try:
        yield
    except Exception as error:  # TRL's client raises bare ones
        if not url or isinstance(error, PalioError):
            raise
        raise UpstreamError(
            f"no weights can be pushed to the vLLM server: {type(error).__name__}: {error}"[:600],
            code=FaultCode.upstream_unreachable,
            where=url,
            remedy="start it as docs/rl.md says, with a GPU of its own; or leave `base_url` empty",
        ) from error


def run_grpo(
    settings: GrpoSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """The stage of a recipe.

    Raises:
        InputError: there is no checkpoint to start from, or no training problems.
        IntegrityError: the loss is not a number.
        UpstreamError: no rollout of a step could be scored, or the teacher answered for no turn.
        MissingDependencyError: a server is to sample, and vLLM is not installed.
    """
    check_vllm(settings)
    rows = list(context.rows)[: settings.problems or None] if settings.reward == "prefix" else []
    ground = None if settings.reward == "prefix" else _problems(context.ground)
    if settings.trl.launch:
        material = lambda: _write_material(out, ground, rows)  # noqa: E731
        named = settings if not settings.base_url else served_by(settings, previous)
        done = trained_elsewhere("grpo", named, context, previous, out, material)
        return sealed(context, previous, out, done.counts, rolled_digest(out))
    policy = open_policy(context, previous, slots=settings.threads)
    policy = _sampled_by(policy, served_by(settings, previous))
    with teacher_of(settings.teacher, context.teacher_key) as upstream:
        roller = make_roller(settings, ground, rows, context.seed, policy, upstream)
        trainer = train_grpo(
            policy,
            Witness(roller, out),
            settings,
            out,
            seed=context.seed,
            report=report,
            threads=context.threads,
        )
    return finished(policy, context, out, _counts(trainer, settings), rolled_digest(out))


def work_grpo(settings: GrpoSettings, policy: Policy, desk: Desk) -> tuple[StepGrpoTrainer, Done]:
    """One of the stage's training processes, `processes.Part`."""
    prefix = settings.reward == "prefix"
    rows = list(read_rows(desk.out / ROWS)) if prefix else []
    ground = None if prefix else read_ground(desk.out / GROUND)
    policy = _sampled_by(policy, settings)
    with teacher_of(settings.teacher, desk.key) as upstream:
        roller = make_roller(settings, ground, rows, desk.seed, policy, upstream)
        witness = Witness(roller, desk.out)
        trainer = train_grpo(policy, witness, settings, desk.out, seed=desk.seed, report=unseen)
    return trainer, Done(_counts(trainer, settings))


def served_by(settings: GrpoSettings, previous: Path | None) -> GrpoSettings:
    """With the name that the model has at `base_url`: by default that of the stage before."""
    name = settings.served_model or str(previous)
    return msgspec.structs.replace(settings, served_model=name)


def _sampled_by(policy: Policy, settings: GrpoSettings) -> Policy:
    if not settings.base_url:
        return policy
    return ServedPolicy(policy, settings.base_url, settings.served_model)


def _write_material(out: Path, ground: Ground | None, rows: Sequence[CorpusRow]) -> None:
    if ground is not None:
        write_ground(ground, out / GROUND)
    (out / ROWS).write_bytes(b"".join(to_json(row) + b"\n" for row in rows))


def _counts(trainer: StepGrpoTrainer, settings: GrpoSettings) -> dict[str, int]:
    steps = trainer.state.global_step
    counts = {"steps": steps, "rollouts": steps * settings.group * settings.groups}
    return {**counts, "stopped_early": int(bool(trainer.stopped))}


@contextmanager
def teacher_of(settings: TeacherSettings, key: str) -> Iterator[Upstream]:
    """The teacher's endpoint, or the scripted models."""
    if not settings.base_url:
        yield ScriptedUpstream(settings.seed)
        return
    with HttpUpstream(settings.base_url, key) as upstream:
        yield upstream


def _problems(ground: Ground | None) -> Ground:
    if ground is None or not ground.problems:
        raise InputError(
            "rollouts need training problems and their catalogues",
            remedy='name them with --suite and --catalogue, or use reward = "prefix"',
        )
    return ground


def make_roller(
    settings: GrpoSettings,
    ground: Ground | None,
    rows: Sequence[CorpusRow],
    seed: int,
    policy: Policy,
    upstream: Upstream,
) -> Roller:
    """What the stage rolls out: turns of rows in prefix mode, else training problems.

    Raises:
        InputError: there are no training problems, or no rows in prefix mode.
    """
    play = settings.play()
    if settings.reward == "prefix":
        prefixes = [
            prefix
            for number, row in enumerate(rows)
            for prefix in prefixes_of(f"{row.problem_id}/{number}", row.typed(), row.offered)
        ]
        if not prefixes:
            raise InputError("no row of the corpus has a turn with a call")
        return PrefixRoller(prefixes, policy.codec, play)
    ground = _problems(ground)
    problems = ground.evenly(settings.problems, f"grpo-{seed}")
    named = settings.teacher
    teacher = TeacherPolicy(upstream, named.model, where=named.base_url)
    asked = teacher if settings.reward == "on_policy" else None
    return WorldRoller(problems, ground, policy.codec, play, asked)


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
