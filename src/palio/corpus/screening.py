"""The first pass: every row meets the gates once; survivors are spooled, the others kept aside."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from palio.corpus.candidate import Candidate
from palio.corpus.config import CorpusConfig
from palio.corpus.conversation import conversation_digest
from palio.corpus.earlier import KNOWN, READ, Settled
from palio.corpus.funnel import Tally
from palio.corpus.gates import Drop, Gate
from palio.corpus.ranking import signals
from palio.corpus.spool import RejectWriter, Spool
from palio.records import Problem, Trajectory, from_json, to_json
from palio.rollout.verdicts import Judged
from palio.suites.keys import normalise_text

TAKEN_DOWN = "taken_down"
"""Reason of a row whose source was taken down: counted, and kept by its ids alone."""
NEVER_TOUCH = "never_touch"
BODILESS = (TAKEN_DOWN, NEVER_TOUCH)
"""Reasons whose rows are kept without their bodies: the rejects are published too."""

Steps = Sequence[tuple[str, tuple[Gate, ...]]]


class Screening:
    """Applies the row gates and counts.

    Attributes:
        agents: rows that came in, by agent name.
    """

    def __init__(
        self,
        problems: Mapping[str, Problem],
        config: CorpusConfig,
        steps: Steps,
        spool: Spool,
        rejects: RejectWriter,
        tally: Tally,
        *,
        refuse: Gate | None = None,
        total: str = "",
    ) -> None:
        self.agents: Counter[str] = Counter()
        self._config = config
        self._steps = steps
        self._spool = spool
        self._rejects = rejects
        self._tally = tally
        self._queries = {name: normalise_text(p.query) for name, p in problems.items()}
        self._seen: set[str] = set()
        self._sum = int(total.rpartition(":")[2] or "0", 16)
        self._refuse = refuse

    def screen(self, judged: Judged) -> Candidate | None:
        """The candidate that a row becomes; None when it was rejected, counted and kept aside."""
        trajectory = judged.trajectory
        body = to_json(judged)
        self.agents[trajectory.agent.name] += 1
        self._sum += int.from_bytes(hashlib.sha256(body).digest(), "big")
        self._tally.take(READ)
        self._tally.keep(READ)
        step, drop = self._judge(judged)
        if drop is not None:
            ids = (trajectory.trajectory_id, trajectory.problem_id, trajectory.agent.name)
            self._rejects.write(step, drop, ids, b"null" if drop.reason in BODILESS else body)
            return None
        return self._candidate(trajectory, body)

    def settle(self, row: Settled) -> Candidate | None:
        """Count a row as the earlier build decided; the candidate that it becomes, if it passed."""
        if row.step != READ:
            self.agents[row.ids[2]] += 1
        for step in (READ, KNOWN, *(name for name, _ in self._steps)):
            self._tally.take(step)
            if row.drop is not None and row.step == step:
                self._tally.drop(step, row.drop.reason)
                self._rejects.write(step, row.drop, row.ids, row.body)
                break
            self._tally.keep(step)
        if row.step not in (READ, KNOWN):
            self._seen.add(row.ids[0])
        if row.drop is not None:
            return None
        judged = from_json(row.body, Judged, where=row.ids[0])
        return self._candidate(judged.trajectory, row.body)

    def _candidate(self, trajectory: Trajectory, body: bytes) -> Candidate:
        measured = signals(trajectory.messages)
        return Candidate(
            trajectory_id=trajectory.trajectory_id,
            problem_id=trajectory.problem_id,
            agent=trajectory.agent.name,
            place=self._spool.add(body),
            conversation=conversation_digest(trajectory.messages),
            signals=measured,
            score=measured.score(self._config.weights),
        )

    def _judge(self, judged: Judged) -> tuple[str, Drop | None]:
        """The step that rejects the row and why; ("", None) when every step keeps it."""
        drop = self._count(KNOWN, self._strangers(judged))
        if drop is not None:
            return KNOWN, drop
        for step, gates in self._steps:
            drop = self._count(step, (gate(judged, self._config) for gate in gates))
            if drop is not None:
                return step, drop
        return "", None

    def _count(self, step: str, answers: Iterable[Drop | None]) -> Drop | None:
        self._tally.take(step)
        drop = next((answer for answer in answers if answer is not None), None)
        if drop is None:
            self._tally.keep(step)
        else:
            self._tally.drop(step, drop.reason)
        return drop

    def _strangers(self, judged: Judged) -> Iterable[Drop | None]:
        if self._refuse is not None:
            yield self._refuse(judged, self._config)
        yield self._stranger(judged)

    def _stranger(self, judged: Judged) -> Drop | None:
        """A row of no known problem, of another wording of it, or one that came before."""
        trajectory = judged.trajectory
        query = self._queries.get(trajectory.problem_id)
        if query is None:
            return Drop(reason="unknown_problem", detail=trajectory.problem_id)
        if query != normalise_text(trajectory.query):
            return Drop(reason="other_query", detail="the suite has another text for this problem")
        if trajectory.trajectory_id in self._seen:
            return Drop(reason="repeated_id", detail="a row with this trajectory id came before")
        self._seen.add(trajectory.trajectory_id)
        return None

    def digest(self) -> str:
        """Digest of all rows that came in, whatever their order: the sum of their digests."""
        return f"sum-sha256:{self._sum % 2**256:064x}"


__all__ = ["BODILESS", "KNOWN", "NEVER_TOUCH", "TAKEN_DOWN", "Screening", "Steps"]
