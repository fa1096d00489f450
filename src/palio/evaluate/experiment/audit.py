"""What the arms of a lab were trained on, held against the pools: counted, stage by stage.

The rows of an arm are drawn again from the firehose, by the digests that drew them for training;
stages that roll out left a record. An arm that exposes held-out clusters on purpose (the leak plan)
has problems outside the training pool: they are counted like any other, and its plan says so.

Weights remember: an arm that starts from another one has seen what that one saw, and so on back to
the base of its seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.draw import draw, salt_of
from palio.evaluate.experiment.firehose import FirehoseRow, read_firehose
from palio.evaluate.experiment.plan import Arm, Plan
from palio.evaluate.experiment.runs import ArmRun, read_runs
from palio.evaluate.experiment.student import base_rows, further
from palio.evaluate.experiment.task import Task
from palio.records import InputError, Record, from_json
from palio.suites.files import read_suite
from palio.train.audit import Origin, RunAudit, StageAudit, Watch, seen_row
from palio.train.recipe import plain_stage
from palio.train.seen import Seen

BASE = "base"


class ArmAudit(Record, frozen=True, omit_defaults=False):
    """What one arm saw under one seed.

    Attributes:
        exposes: whether its plan gives held-out problems on purpose, to it or to an arm whose
            weights it goes on from.
        saw: by its own stages, and in `origins` by those whose weights it goes on from.
    """

    plan: str
    arm: str
    seed: int
    exposes: bool
    saw: RunAudit


class LabAudit(Record, frozen=True, omit_defaults=False):
    """What every finished run of a lab saw; each seed's shared base stands first."""

    arms: tuple[ArmAudit, ...]

    @property
    def clean(self) -> bool:
        """Whether no arm saw what it must not, and all that any of them saw is known."""
        return all(
            not each.saw.unknown and (each.exposes or not each.saw.outside) for each in self.arms
        )


def is_lab(folder: Path) -> bool:
    """Whether a folder is a lab's."""
    return (folder / "world" / "pools.json").is_file() and (folder / "firehose").is_dir()


def audit_lab(folder: Path, plans: Sequence[Plan]) -> LabAudit:
    """Look at everything that the finished runs of a lab saw; nothing is written.

    Args:
        folder: of the lab.
        plans: those of its runs.

    Raises:
        InputError: there is no finished run, or a run's plan is not among `plans`.
    """
    runs = read_runs(folder)
    if not runs:
        raise InputError("no run of this lab is finished", where=str(folder))
    auditor = _Auditor(folder)
    known = {plan.digest(): plan for plan in plans}
    found = [auditor.base(seed) for seed in sorted({run.seed for run in runs})]
    for run in {(each.plan, each.arm, each.seed): each for each in runs}.values():
        if run.plan_digest not in known:
            raise InputError(
                f"the runs of plan {run.plan!r} were made by another version of it",
                where=str(folder),
                remedy="name its file with --plan",
            )
        found.append(auditor.arm(known[run.plan_digest], run))
    return LabAudit(arms=tuple(found))


class _Auditor:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        suite = read_suite(folder / "world" / "suite.json")
        path = folder / "world" / "pools.json"
        self._suite = suite.content_digest()
        pools = from_json(path.read_bytes(), dict[str, str], where=str(path))
        self._watch = Watch(suite.problems, pools)
        self._firehose: list[FirehoseRow] = read_firehose(folder / "firehose")
        self._seen: dict[str, Seen] = {}
        self._told: dict[tuple[str, str, int], tuple[StageAudit, ...]] = {}

    def _rows(self, rows: Sequence[CorpusRow]) -> list[Seen]:
        """Each trajectory is read once, however many arms train on it."""
        for row in rows:
            if row.trajectory_id not in self._seen:
                self._seen[row.trajectory_id] = seen_row(row)
        return [self._seen[row.trajectory_id] for row in rows]

    def base(self, seed: int) -> ArmAudit:
        """The base that all arms of a seed start from."""
        saw = self._run_audit(self._base(seed), None)
        return ArmAudit(plan=BASE, arm=BASE, seed=seed, exposes=False, saw=saw)

    def arm(self, plan: Plan, run: ArmRun) -> ArmAudit:
        """Fine-tuning and what follows it, after all that went into the weights it starts from."""
        arm = plan.arm(run.arm)
        origins = tuple(self._origins(plan, arm, run.seed))
        return ArmAudit(
            plan=plan.name,
            arm=arm.name,
            seed=run.seed,
            exposes=any(each.exposed > 0 for each in (arm, *_starts(plan, arm))),
            saw=self._run_audit(self._stages(Task(plan, arm, run.seed)), origins),
        )

    def _run_audit(
        self, stages: tuple[StageAudit, ...], origins: tuple[Origin, ...] | None
    ) -> RunAudit:
        sizes = self._watch.sizes()
        return RunAudit(suite=self._suite, targets=sizes, stages=stages, origins=origins)

    def _origins(self, plan: Plan, arm: Arm, seed: int) -> Iterator[Origin]:
        """The arms that an arm goes on from, its own start first, and the base of the seed."""
        later = Task(plan, arm, seed)
        for start in _starts(plan, arm):
            task = Task(plan, start, seed)
            yield _origin(later, start.name, task.name, self._stages(task))
            later = task
        yield _origin(later, BASE, f"{BASE}/{BASE}/{seed}", self._base(seed))

    def _base(self, seed: int) -> tuple[StageAudit, ...]:
        if (BASE, BASE, seed) not in self._told:
            folder = self._folder / "seeds" / str(seed) / BASE
            rows = self._rows(base_rows(self._firehose, seed))
            stage = self._watch.stage({"kind": BASE, "name": BASE}, folder, rows)
            self._told[BASE, BASE, seed] = (stage,)
        return self._told[BASE, BASE, seed]

    def _stages(self, task: Task) -> tuple[StageAudit, ...]:
        """What the stages of one run saw; many runs may go on from it."""
        plan, arm, seed = task.plan, task.arm, task.seed
        key = plan.digest(), arm.name, seed
        if key not in self._told:
            reads = arm.sft or arm.stages  # which may mix rows in, without fine-tuning as well
            rows = self._rows(draw(plan, arm, self._firehose, salt_of(seed))) if reads else []
            folder = task.folder(self._folder)
            self._told[key] = tuple(
                self._watch.stage(stage, folder / name, rows) for stage, name in _named_stages(task)
            )
        return self._told[key]


def _starts(plan: Plan, arm: Arm) -> Iterator[Arm]:
    """The arms whose weights an arm goes on from, its own start first."""
    while arm.start:
        arm = plan.arm(arm.start)
        yield arm


def _named_stages(task: Task) -> Iterator[tuple[dict[str, Any], str]]:
    """(stage as plain data, name of its folder) of each stage of a run."""
    if task.arm.sft:
        yield {"kind": "sft", "name": "sft"}, "0-sft"
    for number, entry in enumerate(further(task.plan, task.arm), start=1):
        yield plain_stage(entry), f"{number}-{entry.name}"


def _origin(later: Task, named: str, made_by: str, stages: tuple[StageAudit, ...]) -> Origin:
    first = next((stage["name"] for stage, _ in _named_stages(later)), "")
    return Origin(
        role="start",
        run=later.name,
        stage=first,
        named=named,
        known="run",
        made_by=made_by,
        stages=stages,
    )
