"""The lab carries plans out: ground and firehose once, a base a seed, then arm by arm, resumable.

The folder of a lab::

    config.json, stages/            its configuration, and what is made once
    world/, rollouts/, firehose/    what all arms share
    seeds/SEED/base/                the checkpoint that all arms of a seed start from
    arms/PLAN/ARM/SEED/             stages and examination of one run
    runs.jsonl                      one line a finished run

A run that is in `runs.jsonl` is not made again; one that was killed goes on from its last state,
unless its plan was changed.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from palio.evaluate.experiment.config import LabConfig
from palio.evaluate.experiment.draw import HELDOUT, TRAIN
from palio.evaluate.experiment.exam import Exam, examine
from palio.evaluate.experiment.firehose import FirehoseRow, judge, read_firehose, roll_out, shards
from palio.evaluate.experiment.plan import Arm, Plan, load_plan, plan_names
from palio.evaluate.experiment.runs import ArmRun, append_run, of_plan, read_runs
from palio.evaluate.experiment.student import School, Student, base_digest, further
from palio.evaluate.experiment.task import Task
from palio.evaluate.experiment.twins import adopted, twin_of
from palio.evaluate.mainjob.stages import Reporter, Stages
from palio.evaluate.mainjob.worlds import Ground, make_worlds, open_ground
from palio.judging import default_encoder
from palio.records import ConfigError, PalioError, digest
from palio.rollout.cluster import ExecutorName
from palio.rollout.journal import lock_folder
from palio.train.ground import Ground as TrainingGround
from palio.train.ground import Worlds
from palio.train.memory import give_back
from palio.train.stage import NO_KEYS, Keys
from palio.world.synthesis.wording import chosen_banks

Note = Callable[[str], None]
"""Told in a few words what is going on."""


@dataclass
class Lab:
    """A folder in which plans are carried out.

    Attributes:
        config: what all runs share.
        out: the folder.
        reporter: progress of the stages that are made once.
        clock: seconds.
        executor, address: of the shared rollouts; see `bulk`. They decide no row.
        keys: bearer tokens for the servers that stages of arms ask.
    """

    config: LabConfig
    out: Path
    reporter: Reporter
    clock: Callable[[], float] = time.monotonic
    executor: ExecutorName = "processes"
    address: str = ""
    keys: Keys = NO_KEYS
    _exams: dict[str, Exam] = field(default_factory=dict)

    def prepare(self) -> None:
        """Worlds, rollouts and judged rows; what is finished is not made again.

        Of several processes in one folder the first makes them and the others wait for it.

        Raises:
            ResumeError: the folder is another lab's.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / ".lock").open("ab") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            self._make()

    def _make(self) -> None:
        config, advance = self.config, self.reporter.advance
        held = msgspec.structs.replace(config, workers=1)  # a lab may go on with others
        stages = Stages(self.out, held, self.reporter)
        inputs = [config.digest()]
        stages.run(
            "world",
            inputs,
            lambda folder: make_worlds(
                config, folder, lambda done: advance(done, "worlds"), config.heldout_wordings
            ),
            total=config.catalogues + 1,
        )
        agents = {TRAIN: config.agents, HELDOUT: config.witnesses}
        stages.run("rollouts", inputs, lambda folder: self._roll_out(agents, folder))
        stages.run("firehose", inputs, self._judge)

    def _roll_out(self, agents: dict[str, tuple[str, ...]], folder: Path) -> dict[str, Any]:
        config, ground = self.config, self.ground
        self.reporter.begin("rollouts", len(list(shards(ground, agents, config.seed))))
        many = roll_out(
            ground,
            agents,
            folder,
            seed=config.seed,
            workers=config.workers,
            advance=self.reporter.advance,
            executor=self.executor,
            address=self.address,
        )
        return {"trajectories": many}

    def _judge(self, folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        return dict(
            judge(
                self.ground,
                self.out / "rollouts",
                folder,
                workers=self.config.workers,
                advance=self.reporter.advance,
            )
        )

    @cached_property
    def ground(self) -> Ground:
        """Worlds, problems and pools."""
        return open_ground(self.out / "world")

    @cached_property
    def firehose(self) -> list[FirehoseRow]:
        """Every row."""
        return read_firehose(self.out / "firehose")

    @cached_property
    def worlds(self) -> Worlds:
        """Worlds by catalogue, built when first needed and then kept."""
        ground = self.ground
        return Worlds({name: partial(ground.world, name) for name in ground.catalogue_ids})

    @cached_property
    def school(self) -> School:
        """What all students share."""
        problems = self.ground.pool(TRAIN)
        return School(
            self.config,
            self.out / "seeds",
            self.firehose,
            TrainingGround(problems, self.worlds, default_encoder()),
            self.clock,
            self.keys,
        )

    def exam(self, pool: str) -> Exam:
        """The examination on a pool, the same for every run."""
        if pool not in self._exams:
            self._exams[pool] = Exam.of(self.config, self.ground, self.worlds, pool)
        return self._exams[pool]

    def check(self, plans: Sequence[Plan]) -> None:
        """Refuse plans that this lab cannot carry out, before anything is made.

        Rows that a wrong name leaves out, or does not, are missed after hours only.

        Raises:
            ConfigError: an arm names an agent or a wording that the lab has none of, has a stage
                that cannot be read, or exposes clusters and the lab has no rows of them; or a plan
                compares exposed problems with others and the lab examines on neither.
        """
        for plan in plans:
            for arm in plan.arms:
                _check_names(plan, arm, self.config)
                _check_exposure(plan, arm, self.config)
                further(plan, arm)

    def open_tasks(self, plans: Sequence[Plan], seeds: int) -> list[Task]:
        """Runs that are not made yet: seed by seed, so that a stopped lab has whole seeds."""
        done = read_runs(self.out)
        made = {
            plan.digest(): {(run.arm, run.seed) for run in of_plan(done, plan.digest(), self.lab)}
            for plan in plans
        }
        return [
            Task(plan, arm, seed)
            for seed in range(seeds)
            for plan in plans
            for arm in plan.arms
            if (arm.name, seed) not in made[plan.digest()]
        ]

    def shared_out(self, tasks: Sequence[Task], part: int, parts: int) -> list[Task]:
        """The tasks of one of several processes; arms that start from others stay together."""

        def home(task: Task) -> int:
            arm = "" if any(each.start for each in task.plan.arms) else task.arm.name
            return int(digest([task.plan.name, arm, task.seed])[7:23], 16) % parts

        return [task for task in tasks if home(task) == part]

    @property
    def lab(self) -> str:
        """Digest of the configuration."""
        return self.config.digest()

    def run(
        self, tasks: Sequence[Task], tell: Callable[[int, str], None]
    ) -> list[tuple[Task, PalioError]]:
        """Make runs; one that fails is told, and the others go on.

        Args:
            tasks: in order.
            tell: called with the number of finished runs and what is going on.

        Gives the runs that failed, each with its error.
        """
        failed: list[tuple[Task, PalioError]] = []
        for number, task in enumerate(tasks):
            try:
                made = self.run_one(task, _headed(tell, number, task.name))
                found = f"{100 * made.rate():.1f} % of {made.n['overall']}"
                twin = f", the same as {made.twin}" if made.twin else ""
                tell(number + 1, f"{task.name}: {found}{twin}")
            except PalioError as error:
                failed.append((task, error))
        return failed

    def run_one(self, task: Task, note: Note) -> ArmRun:
        """Train and examine one arm under one seed, and append the result.

        A run that another process has made meanwhile is not made again.

        Raises:
            ConfigError: another process is making it.
            ResumeError: its folder holds what the plan began before it was changed.
        """
        folder = task.folder(self.out)
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):
            made = self._made(task)
            if made is None:
                task.hold(self.out)
                made = self._run_one(task, folder, note)
            return made

    def _made(self, task: Task) -> ArmRun | None:
        found = of_plan(read_runs(self.out), task.plan.digest(), self.lab)
        named = (run for run in found if (run.arm, run.seed) == (task.arm.name, task.seed))
        return next(named, None)

    def _run_one(self, task: Task, folder: Path, note: Note) -> ArmRun:
        known = self._twin(task)
        if known is not None:
            append_run(self.out, known)
            return known
        student = Student(self.school, task, folder, note)
        started = self.clock()
        taught = student.teach()
        middle = self.clock()
        marks = examine(
            self.exam(self.config.pool),
            task,
            taught.checkpoint,
            folder / "exam",
            firehose=self.firehose,
            note=note,
        )
        give_back()
        run = ArmRun(
            plan=task.plan.name,
            plan_digest=task.plan.digest(),
            arm=task.arm.name,
            seed=task.seed,
            lab=self.lab,
            suite_seed=self.config.suite_seed,
            train_s=round(middle - started, 1),
            exam_s=round(self.clock() - middle, 1),
            **taught.facts(),
            **marks,
        )
        append_run(self.out, run)
        return run

    def _twin(self, task: Task) -> ArmRun | None:
        """The run, where one that is finished was given the same under another name."""
        plans = {plan.digest(): plan for plan in (*map(load_plan, plan_names()), task.plan)}
        found = twin_of(
            task.plan,
            task.arm,
            task.seed,
            runs=[run for run in read_runs(self.out) if run.lab == self.lab],
            plans=plans,
            firehose=self.firehose,
            base=base_digest(self.out / "seeds", task.seed),
        )
        return found and adopted(found, task.plan, task.arm, self.out / "arms")


_WITHOUT = "leave the plan out: --plan names those to run"


def _check_names(plan: Plan, arm: Arm, config: LabConfig) -> None:
    wordings = [bank.id for bank in chosen_banks("compact", config.banks)]
    for what, named, held, remedy in (
        ("agent", arm.agents, config.agents, "add it to the lab's `agents`, or "),
        ("wording", arm.banks_out, wordings, ""),
    ):
        unknown = sorted(set(named) - set(held))
        if unknown:
            raise ConfigError(
                f"the lab has no {what} {unknown[0]!r}",
                where=f"plan {plan.name}, arm {arm.name}",
                remedy=f"{remedy}name one of {', '.join(held)}, or {_WITHOUT}",
            )


def _check_exposure(plan: Plan, arm: Arm, config: LabConfig) -> None:
    """Only held-out clusters are exposed, and only by the rows that witnesses leave of them."""
    where = f"plan {plan.name}, arm {arm.name}"
    if arm.exposed and not config.witnesses:
        raise ConfigError(
            "it trains on rows of held-out problems, and the lab has no witness to make any",
            where=where,
            remedy=f"name agents in the lab's `witnesses`, or {_WITHOUT}",
        )
    if plan.measure == "exposed" and config.pool != HELDOUT:
        raise ConfigError(
            f"held-out problems are exposed, and the lab examines on the {config.pool} pool",
            where=where,
            remedy=f'say pool = "{HELDOUT}" in the lab\'s configuration, or {_WITHOUT}',
        )


def _headed(tell: Callable[[int, str], None], number: int, name: str) -> Note:
    return lambda text: tell(number, f"{name}: {text}")
