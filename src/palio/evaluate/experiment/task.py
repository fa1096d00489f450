"""One run of a lab: an arm of a plan under a seed, and the folder that is its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from palio.evaluate.experiment.plan import Arm, Plan
from palio.records import Record, ResumeError, from_json, to_json
from palio.world.artefacts import write_lines

MARK = "plan.json"
"""In the folder of a run: which plan began it."""


class _Mark(Record, frozen=True):
    plan: str
    digest: str


@dataclass(frozen=True)
class Task:
    """What is run."""

    plan: Plan
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.plan.name}/{self.arm.name}/{self.seed}"

    def folder(self, lab: Path) -> Path:
        """Where its stages and its examination are, in the folder of the lab."""
        return lab / "arms" / self.plan.name / self.arm.name / str(self.seed)

    def hold(self, lab: Path) -> None:
        """Note whose work the folder of the run is about to hold; `held_to` is the rule.

        Raises:
            ResumeError: it holds another plan's.
        """
        folder = self.folder(lab)
        folder.mkdir(parents=True, exist_ok=True)
        if not held_to(folder, self.plan):
            mark = _Mark(plan=self.plan.name, digest=self.plan.digest())
            write_lines(folder / MARK, [to_json(mark) + b"\n"])


def held_to(folder: Path, plan: Plan) -> bool:
    """Whether a run's folder says that this plan began it; False where it does not say.

    A plan that was changed keeps its name, and its arms their folders: what the old one trained and
    sampled there would be taken for the new one's.

    Raises:
        ResumeError: it says that another did.
    """
    path = folder / MARK
    if not path.exists():
        return False
    if from_json(path.read_bytes(), _Mark, where=str(path)).digest != plan.digest():
        raise ResumeError(
            f"this run was begun by plan {plan.name!r} as it was before it was changed",
            where=str(folder),
            remedy="give the changed plan another name, name another --out, or remove this folder",
        )
    return True
