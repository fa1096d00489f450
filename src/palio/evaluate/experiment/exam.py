"""The examination: the same problems, worlds, harness and scorer for every run of a lab."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from palio.agents.spec import policy_agent
from palio.broker.limits import Limits
from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.draw import exposed_clusters, salt_of
from palio.evaluate.experiment.firehose import FirehoseRow
from palio.evaluate.experiment.runs import packed
from palio.evaluate.experiment.task import Task
from palio.evaluate.mainjob.measure import THREADS
from palio.evaluate.mainjob.worlds import Ground, evenly
from palio.evaluate.pin import checkpoint_pin
from palio.evaluate.policy import EvalSettings, Policy, evaluate_policy
from palio.evaluate.results import OVERALL, EvalResult
from palio.evaluate.rollouts import Progress
from palio.evaluate.whole import whole
from palio.judging import default_encoder
from palio.records import Problem, digest
from palio.train.engine import Engine
from palio.train.ground import Worlds
from palio.world.world import World

LIMITS = Limits(seconds=300.0)


@dataclass(frozen=True)
class Exam:
    """Problems of a pool, where and how they are run.

    Attributes:
        problems: in the order of the runs' bits.
        worlds: catalogue id -> world, opened.
        clusters: problem id -> leak cluster.
        seed: of the lab; chooses the problems of sampled rollouts, too.
        temperature: of sampled rollouts.
        device: where students answer, as torch names it.
    """

    problems: tuple[Problem, ...]
    worlds: dict[str, World]
    clusters: dict[str, str]
    seed: int
    temperature: float
    device: str

    @classmethod
    def of(cls, config: LabConfig, ground: Ground, worlds: Worlds, pool: str) -> Exam:
        """The examination on a pool: chosen by digest, evenly over the kinds."""
        problems = evenly(ground.pool(pool), config.evaluated, f"exam-{config.seed}")
        names = sorted({problem.catalogue for problem in problems})
        clusters = ground.clustering.cluster_of
        return cls(
            problems,
            {name: worlds[name] for name in names},
            {problem.problem_id: clusters[problem.problem_id] for problem in problems},
            seed=config.seed,
            temperature=config.temperature,
            device=config.device,
        )


def examine(
    exam: Exam,
    task: Task,
    checkpoint: Path,
    out: Path,
    *,
    firehose: Sequence[FirehoseRow],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Greedy rollouts on every problem, samples where the plan asks; the fields of a run's record.

    Rollouts that are already in `out` are not run again; they must be of the same weights.

    Args:
        exam: the same for every run.
        task: whose student it is.
        checkpoint: the student.
        out: folder of the rollouts.
        firehose: every row; an arm that exposes clusters took them from here.
        note: told what is going on.

    Raises:
        UpstreamError: infrastructure kept some rollouts from being scored.
        ResumeError: the folder holds rollouts of other weights.
    """
    plan = task.plan
    answer = partial(_answered, exam, task, checkpoint, note=note)
    usual = EvalSettings(threads=THREADS, seed=task.seed, limits=LIMITS)
    greedy = answer(exam.problems, usual, out / "greedy")
    marks = _greedy_marks(greedy, exam.problems)
    marks["groups"] = _groups(greedy, exam, task, firehose)
    if plan.samples:
        chosen = evenly(exam.problems, plan.sampled, f"sampled-{exam.seed}")
        settings = msgspec.structs.replace(
            usual, samples=plan.samples, temperature=exam.temperature
        )
        sampled = answer(chosen, settings, out / "sampled").overall
        found = sampled.pass_at["oro"]
        marks["pass_at"] = {k: each.value for k, each in found.items() if each.value is not None}
        marks["timed_out"] += sampled.timed_out
        marks["sampled"] = len(chosen)
    return marks


def _answered(
    exam: Exam,
    task: Task,
    checkpoint: Path,
    problems: Sequence[Problem],
    settings: EvalSettings,
    folder: Path,
    *,
    note: Callable[[str], None],
) -> EvalResult:
    """The student's rollouts on some problems, every one of them scored."""
    spec = policy_agent(f"{task.plan.name}-{task.arm.name}", task.arm.name)

    def shown(progress: Progress) -> None:
        note(f"exam {progress.done} of {progress.total}")

    with Engine(checkpoint, slots=THREADS, device=exam.device) as engine:
        answer = partial(
            evaluate_policy,
            Policy(task.arm.name, spec, engine, checkpoint_pin(checkpoint)),
            problems,
            exam.worlds,
            default_encoder(),
            out=folder,
            settings=settings,
            clusters=exam.clusters,
            progress=shown,
        )
        return whole(answer, folder)


def _greedy_marks(result: EvalResult, problems: Sequence[Problem]) -> dict[str, Any]:
    solved = {row.problem_id for row in result.scores if row.success.get("oro")}
    whole = result.overall
    return {
        "problems": digest([problem.problem_id for problem in problems]),
        "n": {name: group.asr["oro"].n for name, group in result.intents.items()},
        "unscored": whole.unscored_rollouts,
        "timed_out": whole.timed_out,
        "successes": {name: group.asr["oro"].successes for name, group in result.intents.items()},
        "strict": {name: group.asr["strict"].successes for name, group in result.intents.items()},
        "solved": packed([problem.problem_id in solved for problem in problems]),
        "car": whole.car.value or 0.0,
        "invented_ids": whole.invented_ids,
        "inventing": whole.inventing.value or 0.0,
    }


def _groups(
    result: EvalResult, exam: Exam, task: Task, firehose: Sequence[FirehoseRow]
) -> dict[str, tuple[int, int]]:
    """Successes and n of the subsets that plans ask about."""
    labels = {problem.problem_id: [f"bank:{problem.bank}"] for problem in exam.problems}
    if task.arm.exposed:
        exposed = exposed_clusters(task.arm, firehose, salt_of(task.seed))
        for problem in exam.problems:
            inside = exam.clusters[problem.problem_id] in exposed
            labels[problem.problem_id].append("exposed" if inside else "unexposed")
    scored = [row for row in result.scores if row.status == "scored"]
    good = _counted(labels, (row.problem_id for row in scored if row.success.get("oro")))
    every = _counted(labels, (row.problem_id for row in scored))
    return {name: (good[name], n) for name, n in sorted(every.items()) if name != OVERALL}


def _counted(labels: dict[str, list[str]], problems: Iterable[str]) -> Counter[str]:
    return Counter(label for problem in problems for label in labels[problem])
