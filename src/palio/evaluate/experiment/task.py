"""One run of a lab: an arm of a plan under a seed, and the folder that is its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from palio.evaluate.experiment.plan import Arm, Plan


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
