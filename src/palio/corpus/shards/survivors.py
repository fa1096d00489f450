"""Which rows of the shards go on: known problems, good verdicts, no search that knew too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from palio.corpus.candidate import Candidate
from palio.corpus.config import NEVER, CorpusConfig
from palio.corpus.conversation import observations
from palio.corpus.funnel import Tally
from palio.corpus.gates import Drop, agreed, good_outcome, good_reasoning
from palio.corpus.ranking import Signals
from palio.corpus.salvage.mark import AGENT_MARK, SOURCE_MARK
from palio.corpus.salvage.oracle import oracle_words
from palio.corpus.screening import KNOWN, NEVER_TOUCH
from palio.corpus.separation import Separation
from palio.corpus.shards.columns import SIGNALS
from palio.corpus.shards.rows import ShardRows
from palio.corpus.shards.stream import REPEATED, Ids
from palio.corpus.spool import RejectWriter
from palio.records import AgentRef, Problem, Trajectory
from palio.rollout.verdicts import Judged, Verdicts
from palio.suites.keys import normalise_text

OUTCOME, REASONING, ORACLE = "outcome", "reasoning", "grounding"
"""Named as in `palio.corpus.gates.row_steps`, so that a corpus made of shards can grow by a day."""
GATES = (OUTCOME, REASONING, ORACLE)
_normal = lru_cache(maxsize=1 << 16)(normalise_text)


class Survivors:
    """Applies the steps that need problems or verdicts, and counts.

    Attributes:
        agents: rows that came out of the shards, by agent name.
    """

    def __init__(
        self,
        problems: Mapping[str, Problem],
        config: CorpusConfig,
        separation: Separation,
        verdicts: Mapping[str, Verdicts],
        tally: Tally,
        rejects: RejectWriter,
    ) -> None:
        self.agents: Counter[str] = Counter()
        self._problems = problems
        self._config = config
        self._pool_of = separation.pool_of
        self._verdicts = verdicts
        self._tally = tally
        self._rejects = rejects
        self._seen: set[str] = set()
        self._ids = Ids(problems)
        texts = Counter(_normal(problem.query) for problem in problems.values())
        self._by_text = {
            _normal(p.query): name for name, p in problems.items() if texts[_normal(p.query)] == 1
        }

    def of(self, rows: ShardRows) -> list[Candidate]:
        """The candidates that go on, in order of shard and row."""
        found: list[Candidate] = []
        for shard, columns in rows.small():
            lines = self._ids.of(rows, shard, iter(rows.lines(shard)))
            mine = [
                candidate
                for place, (_, *told) in enumerate(zip(lines, *columns.values(), strict=True))
                if (candidate := self._one(dict(zip(columns, told, strict=True)), (shard, place)))
            ]
            found += self._unknowing(mine, rows, shard)
        return found

    def _one(self, row: dict[str, Any], place: tuple[int, int]) -> Candidate | None:
        self.agents[row["agent"]] += 1
        problem = row["problem_id"]
        if problem not in self._problems:
            problem = self._by_text.get(_normal(row["query"]), problem)
        name = self._ids.told(row["trajectory_id"], row["format"])
        ids = (name, problem, row["agent"])
        if not self._passes(KNOWN, ids, (self._stranger(row, name, problem),)):
            return None
        judged = _judged(row, self._verdicts.get(name, Verdicts()))
        config = self._config
        outcome = (agreed(judged, config), good_outcome(judged, config))
        if not self._passes(OUTCOME, ids, outcome):
            return None
        if not self._passes(REASONING, ids, (good_reasoning(judged, config),)):
            return None
        signals = Signals(**{name: row[name] for name in SIGNALS})
        return Candidate(
            trajectory_id=name,
            problem_id=problem,
            agent=row["agent"],
            place=place,
            conversation=row["key"],
            signals=signals,
            score=signals.score(config.weights),
        )

    def _stranger(self, row: Mapping[str, Any], name: str, problem: str) -> Drop | None:
        known = self._problems.get(problem)
        if known is None:
            return Drop(reason="unknown_problem", detail=problem)
        if self._pool_of[problem] == NEVER:
            return Drop(reason=NEVER_TOUCH, detail=problem)
        if _normal(known.query) != _normal(row["query"]):
            return Drop(reason="other_query", detail="the suite has another text for this problem")
        if name in self._seen or name in self._ids.gone:
            return REPEATED
        self._seen.add(name)
        return None

    def _unknowing(self, mine: list[Candidate], rows: ShardRows, shard: int) -> list[Candidate]:
        """Without those whose searches use words of the title that nothing had told.

        Looked at without results first, which reads a tenth of the bytes: what is told by nothing
        with the results is told by nothing without them.
        """
        drops: dict[tuple[int, int], Drop] = {}
        if self._config.oracle_search and mine:
            calls = rows.calls(shard)
            doubtful = [
                one
                for one in mine
                if self._words(one, [(*call, "") for call in calls[one.place[1]]])
            ]
            for one, trajectory in rows.trajectories(doubtful):
                if words := self._words(one, observations(trajectory)):
                    drops[one.place] = Drop(reason="oracle_search", detail=", ".join(words[:5]))
        return [
            one
            for one in mine
            if self._passes(
                ORACLE, (one.trajectory_id, one.problem_id, one.agent), (drops.get(one.place),)
            )
        ]

    def _words(self, one: Candidate, calls: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
        problem = self._problems[one.problem_id]
        titles = tuple(title for reward in problem.rewards for title in reward.title)
        return oracle_words(problem.query, titles, calls)

    def _passes(self, step: str, ids: tuple[str, str, str], answers: Iterable[Drop | None]) -> bool:
        self._tally.take(step)
        drop = next((answer for answer in answers if answer is not None), None)
        if drop is None:
            self._tally.keep(step)
            return True
        self._tally.drop(step, drop.reason)
        self._rejects.write(step, drop, ids, b"null")
        return False


def _judged(row: Mapping[str, Any], verdicts: Verdicts) -> Judged:
    """What gates on verdicts look at: no messages, but whether the row was salvaged."""
    trajectory = Trajectory(
        trajectory_id=row["trajectory_id"],
        problem_id=row["problem_id"],
        query="",
        kind="",
        agent=AgentRef(name=row["agent"]),
        events=(),
        messages=(),
        source=SOURCE_MARK if row["agent"].endswith(AGENT_MARK) else "",
    )
    return Judged(trajectory=trajectory, verdicts=verdicts)
