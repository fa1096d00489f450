"""The last stage: Dr. GRPO with rollouts in the world, outcome reward and credit for each step."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch
from trl.trainer.grpo_config import GRPOConfig

from palio.corpus.rows import read_rows
from palio.train.backends.arguments import check_taken, configured
from palio.train.backends.sharing import check_in_place
from palio.train.context import Context, Kind
from palio.train.rl.completions import NO_KEY, check_completions
from palio.train.rl.hooks import (
    MetricsFile,
    finished,
    last_state,
    small_trl,
    trl_fields,
)
from palio.train.rl.material import GROUND, read_ground
from palio.train.rl.opening import open_policy
from palio.train.rl.policy import Policy, ServedPolicy
from palio.train.rl.prefixes import PrefixRoller
from palio.train.rl.processes import (
    ROWS,
    Desk,
    Done,
    check_batch,
    sealed,
    trained_elsewhere,
    unseen,
)
from palio.train.rl.pushed import check_installed, check_server, push_whole, pushing
from palio.train.rl.rollouts import Roller
from palio.train.rl.settings import GrpoSettings, TeacherSettings
from palio.train.rl.sources import (
    make_roller,
    problems_of,
    rows_of,
    teacher_of,
    write_material,
)
from palio.train.rl.trainer import Scheme, StepGrpoTrainer
from palio.train.seen import Witness, rolled_digest
from palio.train.stage import Endpoint, Report, StageResult


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

    Raises:
        ConfigError: the batches of all processes are not one step's rollouts, there are fewer
            problems than a step takes, or TRL does not take what the recipe says.
    """
    settings.check_problems(len(roller.keys))
    torch.set_num_threads(threads)
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
    )
    start = None if hasattr(policy.model, "peft_config") else policy.copy()
    with pushing(settings.base_url):
        trainer = StepGrpoTrainer(
            policy,
            roller,
            scheme,
            start=start,
            args=dr_grpo_arguments(settings, out, seed),
            keys=roller.keys,
            callbacks=[MetricsFile(out, report)],
        )
    push_whole(trainer)
    processes = trainer.accelerator.num_processes
    check_batch(settings.trl, settings.group * settings.groups, processes)
    models = [policy.model] if start is None else [policy.model, start]
    low, heat = settings.trl.bf16, settings.temperature
    fast = policy.kernels(models, temperature=heat, low=low, threads=threads)
    # they give no gradient of the entropy
    with nullcontext() if trainer.args.entropy_coef else fast:
        trainer.train(resume_from_checkpoint=last_state(out))
    return trainer


def run_grpo(
    settings: GrpoSettings, context: Context, previous: Path | None, out: Path, report: Report
) -> StageResult:
    """The stage of a recipe.

    Raises:
        InputError: there is no checkpoint to start from, or no training problems.
        ConfigError: there are fewer of them than a step takes.
        IntegrityError: the loss is not a number.
        UpstreamError: no rollout of a step could be scored, or the teacher answered for no turn.
        MissingDependencyError: a server is to sample, and vLLM is not installed.
    """
    if settings.base_url:
        check_installed()
    rows = rows_of(settings, context) if settings.reward == "prefix" else []
    ground = None if settings.reward == "prefix" else problems_of(context.ground)
    if ground is not None:
        settings.check_problems(len(ground.problems))
    if settings.trl.launch:
        material = lambda: write_material(out, ground, rows)  # noqa: E731
        named = settings if not settings.base_url else served_by(settings, previous)
        done = trained_elsewhere("grpo", named, context, previous, out, material)
        return sealed(context, previous, out, done.counts, rolled_digest(out))
    policy = open_policy(context, previous, slots=settings.threads)
    policy = _sampled_by(policy, served_by(settings, previous))
    with teacher_of(settings.teacher, context.keys.teacher) as upstream:
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
    return finished(policy, context, out, _counts(trainer, roller), rolled_digest(out))


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
    return trainer, Done(_counts(trainer, roller))


def served_by(settings: GrpoSettings, previous: Path | None) -> GrpoSettings:
    """With the name that the model has at `base_url`: by default that of the stage before."""
    name = settings.served_model or str(previous)
    return msgspec.structs.replace(settings, served_model=name)


def _sampled_by(policy: Policy, settings: GrpoSettings) -> Policy:
    if not settings.base_url:
        return policy
    return ServedPolicy(policy, settings.base_url, settings.served_model, on_key=NO_KEY)


def _counts(trainer: StepGrpoTrainer, roller: Roller) -> dict[str, int]:
    """What was done; with TRL's `num_iterations` several updates are on the same rollouts."""
    steps, args = trainer.state.global_step, trainer.args
    batches = args.steps_per_generation * args.num_iterations
    made = -(-steps * args.gradient_accumulation_steps // batches) * args.generation_batch_size
    lost = roller.left_out if isinstance(roller, PrefixRoller) else {}
    counts = {"steps": steps, "rollouts": made, "stopped_early": int(bool(trainer.watch.stopped))}
    return counts | {reason: count for reason, count in lost.items() if count}


def shrink(settings: GrpoSettings) -> GrpoSettings:
    """Rollouts of two groups of two, twice; a dry run asks nobody outside."""
    small, updates = small_trl(settings.trl), settings.updates
    teacher = TeacherSettings() if settings.teacher.base_url else settings.teacher
    return msgspec.structs.replace(
        settings,
        trl=msgspec.structs.replace(small, max_steps=2 * updates, save_steps=updates),
        teacher=teacher,
        group=2,
        groups=2,
        problems=2,
        max_tokens=24,
        longest=max(settings.longest, 3000),
        base_url="",
        probe=2,
    )


def asked(settings: GrpoSettings, previous: Path | None) -> Endpoint | None:
    """The teacher's server, where it is asked; one that samples is given the weights."""
    del previous
    teacher = settings.teacher
    if settings.reward != "on_policy" or not teacher.base_url:
        return None
    return Endpoint(base_url=teacher.base_url, model=teacher.model, teacher=True)


def needed(settings: GrpoSettings) -> None:
    """Arguments that TRL has; a server to push weights to and to ask, or whole ones to sample."""
    check_taken(GRPOConfig, settings.trl)
    if settings.base_url:
        check_completions(settings.base_url, settings.temperature, "base_url", on_key=NO_KEY)
        check_server(settings.base_url, launched=bool(settings.trl.launch))
    else:
        check_in_place(settings.trl)


GRPO = Kind(
    settings=GrpoSettings,
    run=run_grpo,
    shrink=shrink,
    ground=True,
    worldless=lambda settings: settings.reward == "prefix",
    own=True,
    asks=asked,
    needs=needed,
)
