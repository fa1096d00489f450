"""What agents produced on the lab's problems, every row kept, with the gates that each row passes.

The firehose is rolled out and judged once for a suite seed; every arm of every plan draws its rows
from it. A row that no corpus would keep is in it too: that is what an unjudged arm is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.broker.limits import Limits
from palio.corpus.config import CorpusConfig
from palio.corpus.gates import row_steps
from palio.corpus.reading import TraceReader
from palio.corpus.replay import Worlds
from palio.corpus.rows import row_of
from palio.corpus.salvage.narrator import Narrator
from palio.corpus.salvage.rewrite import SalvageConfig, salvage_one
from palio.evaluate.experiment.plan import Gate
from palio.evaluate.mainjob.arena import load_share
from palio.evaluate.mainjob.worlds import Ground
from palio.records import Problem, Record, Trajectory, from_json, to_json
from palio.rollout import Shard, bulk
from palio.rollout.cluster import ExecutorName
from palio.rollout.verdicts import Judged, Panel, judge_all
from palio.world.artefacts import replacing

ROWS = "rows.jsonl"

STEPS: Mapping[Gate, tuple[str, ...]] = {
    "outcome": ("outcome",),
    "structural": ("hard rejects", "axis", "format"),
    "coefficient": ("reasoning",),
    "grounding": ("grounding",),
}
"""Family of gates -> the steps of the corpus pipeline that belong to it."""


class FirehoseRow(Record, frozen=True):
    """One trajectory as a corpus row, and what is known of it.

    Attributes:
        row: the row as JSON; decoded only when it is trained on.
        agent: who made it; a salvaged one carries the mark of salvage.
        pool: of its problem.
        bank: paraphrase bank of its problem.
        passed: families of gates that it passes.
        salvaged: whether it was rewritten from a sub-task trace.
    """

    trajectory_id: str
    problem_id: str
    cluster_id: str
    agent: str
    kind: str
    pool: str
    bank: str
    passed: tuple[Gate, ...]
    salvaged: bool
    row: msgspec.Raw


def shards(ground: Ground, agents: Mapping[str, tuple[str, ...]], seed: int) -> Iterator[Shard]:
    """One shard a catalogue and pool: every agent of the pool on each of its problems."""
    for pool, names in agents.items():
        by_catalogue: dict[str, list[str]] = {}
        for problem in ground.pool(pool):
            by_catalogue.setdefault(problem.catalogue, []).append(problem.problem_id)
        for catalogue, ids in by_catalogue.items():
            yield Shard(
                name=f"{catalogue}-{pool}",
                source=partial(load_share, ground.folder, catalogue, tuple(ids)),
                agents=tuple(find_agent(name) for name in names),
                upstream=ScriptedUpstream,
                seeds=(seed,),
                config={"problems": ids},
            )


def roll_out(
    ground: Ground,
    agents: Mapping[str, tuple[str, ...]],
    folder: Path,
    *,
    seed: int,
    workers: int,
    advance: Callable[[int, str], None],
    executor: ExecutorName = "processes",
    address: str = "",
) -> int:
    """Run the agents; resumes by shard. Gives the number of trajectories.

    Args:
        ground: worlds and pools.
        agents: pool -> the agents that run on its problems.
        folder: of the shards.
        seed: of the agents.
        workers: processes.
        advance: called with shards done and a note.
        executor: see `bulk`; decides no row.
        address: of a running Ray cluster.
    """
    report = bulk(
        list(shards(ground, agents, seed)),
        folder,
        workers=workers,
        executor=executor,
        address=address,
        limits=Limits(seconds=60.0),
        progress=lambda done, _, rows: advance(done, f"{rows:,} trajectories"),
    )
    return report.trajectories


def judge(
    ground: Ground,
    source: Path,
    out: Path,
    *,
    workers: int,
    advance: Callable[[int, str], None],
) -> dict[str, int]:
    """Judge every trajectory, salvage what a harness made, and write all rows.

    Gives counts: rows, salvaged, and rows that pass each family of gates.
    """
    catalogues = {name: ground.catalogue(name) for name in ground.catalogue_ids}
    panel = Panel(ground.problems, {n: each.products for n, each in catalogues.items()})
    reader = TraceReader([source])
    mark = _Mark(ground)
    counts: dict[str, int] = {"rows": 0, "salvaged": 0}
    with replacing(out / ROWS) as file:
        judged = judge_all(reader, panel, workers=workers)
        for row in mark.rows(_with_salvaged(judged, Worlds(catalogues), panel)):
            file.write(to_json(row) + b"\n")
            counts["rows"] += 1
            counts["salvaged"] += row.salvaged
            for gate in row.passed:
                counts[gate] = counts.get(gate, 0) + 1
            if counts["rows"] % 500 == 0:
                advance(counts["rows"], "judged")
    return counts


def _with_salvaged(
    judged: Iterable[Judged], worlds: Worlds, panel: Panel
) -> Iterator[tuple[Judged, bool]]:
    """Every row, and after a sub-task success the agentic row that it becomes, where it does."""
    narrator, config = Narrator(), SalvageConfig()
    for one in judged:
        yield one, False
        if one.trajectory.agent.kind != "subtask" or not one.success("oro"):
            continue
        replayer = worlds.replayer(one.trajectory)
        if replayer is None:
            continue
        made = salvage_one(one.trajectory, replayer, narrator, config)
        if isinstance(made, Trajectory):
            yield Judged(trajectory=made, verdicts=panel.verdicts(made)), True


class _Mark:
    """Says of a judged trajectory which gates it passes, each asked for itself."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._problems: dict[str, Problem] = {p.problem_id: p for p in ground.problems}
        self._config = CorpusConfig(salvaged=True)
        self._steps = dict(row_steps(None, self._problems))

    def rows(self, judged: Iterable[tuple[Judged, bool]]) -> Iterator[FirehoseRow]:
        """Rows of the trajectories that a model can be trained on at all."""
        for one, salvaged in judged:
            if self._trainable(one):
                yield self._row(one, salvaged=salvaged)

    def _trainable(self, one: Judged) -> bool:
        """Infrastructure did not break it, and a model said something in it."""
        messages = one.trajectory.messages
        told = [m for m in messages if m.role == "assistant" and (m.tool_calls or m.content)]
        return self._passes("scored", one) and bool(told)

    def _passes(self, step: str, one: Judged) -> bool:
        return all(gate(one, self._config) is None for gate in self._steps[step])

    def _row(self, one: Judged, *, salvaged: bool) -> FirehoseRow:
        trajectory = one.trajectory
        problem = self._problems[trajectory.problem_id]
        cluster = self._ground.clustering.cluster_of[problem.problem_id]
        passed = tuple(
            gate for gate, steps in STEPS.items() if all(self._passes(step, one) for step in steps)
        )
        return FirehoseRow(
            trajectory_id=trajectory.trajectory_id,
            problem_id=problem.problem_id,
            cluster_id=cluster,
            agent=trajectory.agent.name,
            kind=problem.kind,
            pool=self._ground.pools[problem.problem_id],
            bank=problem.bank,
            passed=passed,
            salvaged=salvaged,
            row=msgspec.Raw(to_json(row_of(trajectory, cluster))),
        )


def read_firehose(folder: Path) -> list[FirehoseRow]:
    """Every row of a finished firehose; 50,000 rows hold about 250 MB."""
    path = folder / ROWS
    with path.open("rb") as file:
        return [
            from_json(line, FirehoseRow, where=f"{path}:{number}")
            for number, line in enumerate(file, start=1)
        ]
