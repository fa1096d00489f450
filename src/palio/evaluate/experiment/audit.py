"""What the arms of a lab were trained on, held against the pools: counted, stage by stage.

The rows of an arm are drawn again from the firehose, by the digests that drew them for training;
stages that roll out left a record. An arm that exposes held-out clusters on purpose (the leak plan)
has problems outside the training pool: they are counted like any other, and its plan says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palio.corpus.rows import CorpusRow
from palio.evaluate.experiment.draw import draw, salt_of
from palio.evaluate.experiment.firehose import FirehoseRow, read_firehose
from palio.evaluate.experiment.plan import Plan
from palio.evaluate.experiment.runs import ArmRun, read_runs
from palio.evaluate.experiment.student import base_rows, further
from palio.evaluate.experiment.task import Task
from palio.records import InputError, Record, from_json, to_json
from palio.suites.files import read_suite
from palio.train.audit import AUDIT, RunAudit, Watch, seen_row
from palio.train.recipe import plain_stage
from palio.train.seen import Seen
from palio.world.artefacts import write_lines

BASE = "base"


class ArmAudit(Record, frozen=True, omit_defaults=False):
    """What one arm saw under one seed.

    Attributes:
        exposes: whether its plan gives it held-out problems on purpose.
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
    """Look at everything that the finished runs of a lab saw, and write `audit.json` into it.

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
    made = LabAudit(arms=tuple(found))
    write_lines(folder / AUDIT, [to_json(made), b"\n"])
    return made


class _Auditor:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        suite = read_suite(folder / "world" / "suite.json")
        path = folder / "world" / "pools.json"
        self._suite = suite.content_digest()
        self._watch = Watch(suite.problems, from_json(path.read_bytes(), dict[str, str]))
        self._firehose: list[FirehoseRow] = read_firehose(folder / "firehose")
        self._seen: dict[str, Seen] = {}

    def _rows(self, rows: Sequence[CorpusRow]) -> list[Seen]:
        """Each trajectory is read once, however many arms train on it."""
        for row in rows:
            if row.trajectory_id not in self._seen:
                self._seen[row.trajectory_id] = seen_row(row)
        return [self._seen[row.trajectory_id] for row in rows]

    def base(self, seed: int) -> ArmAudit:
        """The base that all arms of a seed start from."""
        folder = self._folder / "seeds" / str(seed) / BASE
        rows = self._rows(base_rows(self._firehose, seed))
        stage = self._watch.stage({"kind": BASE, "name": BASE}, folder, rows)
        saw = RunAudit(suite=self._suite, targets=self._watch.sizes(), stages=(stage,))
        return ArmAudit(plan=BASE, arm=BASE, seed=seed, exposes=False, saw=saw)

    def arm(self, plan: Plan, run: ArmRun) -> ArmAudit:
        """Fine-tuning and what follows it."""
        arm = plan.arm(run.arm)
        folder = Task(plan, arm, run.seed).folder(self._folder)
        rows = self._rows(draw(plan, arm, self._firehose, salt_of(run.seed))) if arm.sft else []
        stages = [({"kind": "sft", "name": "sft"}, "0-sft")] if arm.sft else []
        for number, entry in enumerate(further(plan, arm), start=1):
            stages.append((plain_stage(entry), f"{number}-{entry.name}"))
        made = tuple(self._watch.stage(stage, folder / name, rows) for stage, name in stages)
        saw = RunAudit(suite=self._suite, targets=self._watch.sizes(), stages=made)
        return ArmAudit(
            plan=plan.name, arm=arm.name, seed=run.seed, exposes=arm.exposed > 0, saw=saw
        )
