"""Every kept row says where it came from and how it was judged, in one side file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from palio.corpus.candidate import Candidate
from palio.corpus.ranking import Signals
from palio.records import AgentRef, InputError, Record, from_json
from palio.rollout.verdicts import Judged, Verdicts

PROVENANCE = "provenance.jsonl"


class Lineage(Record, frozen=True, omit_defaults=False):
    """Provenance of one row; `trajectory_id` joins it to the row itself.

    Attributes:
        verdicts: every verdict as it was given, judges and versions included.
        score: weighted ranking signals, in [0, 1].
        source: "rollout", the reader and file of an imported trace, or "salvage:" and the id of
            the trajectory that the row was made of; `agent.model` is the rewriter then.
    """

    trajectory_id: str
    pool: str
    problem_id: str
    cluster_id: str
    agent: AgentRef
    verdicts: Verdicts
    signals: Signals
    score: float
    catalogue: str
    catalogue_digest: str
    suite_id: str
    seed: int
    attempt: int
    source: str
    tool_version: str

    @property
    def richness(self) -> float | None:
        """Share of catalogue calls that the model emitted."""
        return self.verdicts.richness.richness if self.verdicts.richness else None

    @property
    def coefficient(self) -> float | None:
        """Reasoning coefficient."""
        return self.verdicts.reasoning.coefficient if self.verdicts.reasoning else None

    def success(self, profile: str) -> bool:
        """Whether it succeeded under `profile`; False where there is no such verdict."""
        return any(v.success for v in self.verdicts.outcomes if v.profile == profile)


def lineage_of(judged: Judged, candidate: Candidate, pool: str, cluster_id: str) -> Lineage:
    """The lineage of a row that goes into `pool`."""
    trajectory = judged.trajectory
    return Lineage(
        trajectory_id=trajectory.trajectory_id,
        pool=pool,
        problem_id=trajectory.problem_id,
        cluster_id=cluster_id,
        agent=trajectory.agent,
        verdicts=judged.verdicts,
        signals=candidate.signals,
        score=candidate.score,
        catalogue=trajectory.catalogue,
        catalogue_digest=trajectory.catalogue_digest,
        suite_id=trajectory.suite_id,
        seed=trajectory.seed,
        attempt=trajectory.attempt,
        source=trajectory.source,
        tool_version=trajectory.tool_version,
    )


def read_lineage(folder: Path) -> Iterator[Lineage]:
    """Stream the provenance of a corpus folder, in order of trajectory id.

    Raises:
        InputError: there is none, or a row is wrong.
    """
    path = folder / PROVENANCE
    if not path.is_file():
        raise InputError("no provenance here", where=str(path), remedy="name a corpus folder")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield from_json(line, Lineage, where=f"{path}:{number}")
