"""A day's new trajectories join a corpus as if all had been built at once; the rest stands.

Only what is new is judged and gated. The steps that compare rows (duplicates, caps) run over
everything again, since a new row may outrank an old one, and pools never move. The result has the
bytes of one full build with the same earlier split, except that a row which an earlier day kept and
this one displaces is kept in the rejects without the host's record of the run (events, ending).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from palio.corpus.build import build, read_pools
from palio.corpus.earlier import Earlier, Settled, read_rejects, settled_rows, steps_before
from palio.corpus.funnel import Funnel
from palio.corpus.gates import TokenCount
from palio.corpus.lineage import read_lineage
from palio.corpus.screening import KNOWN
from palio.corpus.standing import Standing
from palio.corpus.takedown import NOTICES, read_notices, refusal
from palio.records import (
    InputError,
    Problem,
    ReasoningVerdict,
    Reject,
    ResumeError,
    Trajectory,
    from_json,
    to_json,
)
from palio.rollout.verdicts import Judged
from palio.suites.clusters import by_id
from palio.suites.embedding import VectorStore


class Day:
    """New trajectories on top of a standing corpus.

    Attributes:
        skipped: trajectories of the stream that the corpus already accounts for; they are neither
            judged nor counted again, so that a growing folder can be given every day.
        revived: trajectories that an earlier day rejected because no suite had their problem, and
            that are judged now.

    Args:
        before: the corpus to grow from.
        problems: every problem of the corpus and of the new trajectories.

    Raises:
        InputError: a problem of the corpus is not among `problems`.
    """

    def __init__(self, before: Standing, problems: Iterable[Problem]) -> None:
        self._before = before
        self._problems = by_id(problems)
        self._pools = read_pools(before.folder)
        missing = [name for name in self._pools if name not in self._problems]
        if missing:
            raise InputError(
                f"{len(missing)} problems of the corpus are in no suite, {missing[0]!r} the first",
                where=str(before.folder),
                remedy="give the earlier suites as well: a problem of a corpus never goes away",
            )
        self.skipped = 0
        self._known = {line.trajectory_id for line in read_lineage(before.folder)}
        revived = []
        for reject in read_rejects(before.folder):
            self._known.add(reject.trajectory_id)
            if self._may_revive(reject.step, reject.reason, reject.problem_id):
                revived.append(not isinstance(reject.judged, msgspec.UnsetType))
        self.revived = sum(revived)

    def check_judge(self, inputs: Mapping[str, str]) -> None:
        """Raise ResumeError unless a build's inputs name the reasoning judge of the corpus.

        Coefficients of two judges are two measures, and one gate cannot hold for both.
        """
        own, other = (_judge_of(each) for each in (self._before.manifest.inputs, inputs))
        if own != other:
            raise ResumeError(
                f"the corpus was judged by {' '.join(own)}, this day would be by {' '.join(other)}",
                where=str(self._before.folder),
                remedy="name the same judge with --judge, or build the corpus again",
            )

    def said(self) -> dict[str, ReasoningVerdict]:
        """Trajectory id -> reasoning verdict of what is judged again, from the day it came."""
        found = {}
        for row in settled_rows(self._before.folder) if self.revived else ():
            if self._is_revived(row):
                verdict = from_json(row.body, Judged, where=row.ids[0]).verdicts.reasoning
                if verdict is not None:
                    found[row.ids[0]] = verdict
        return found

    def to_judge(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """What has to be judged: rows whose problem is known by now, then what is new."""
        if self.revived:
            for row in settled_rows(self._before.folder):
                if self._is_revived(row):
                    yield from_json(row.body, Judged, where=row.ids[0]).trajectory
        for trajectory in trajectories:
            if trajectory.trajectory_id in self._known:
                self.skipped += 1
            else:
                yield trajectory

    def build(
        self,
        judged: Iterable[Judged],
        out: Path,
        *,
        inputs: Mapping[str, str] | None = None,
        count: TokenCount | None = None,
        vectors: VectorStore | None = None,
        unread: Sequence[Reject] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Funnel:
        """Write the grown corpus to `out`; arguments and errors are those of `build.build`.

        Args:
            judged: what `to_judge` gave, with verdicts.
            out: another folder than the corpus that it grows from.
            inputs: name -> digest of the new input files.
            count: exact tokens of a row, as in the earlier build.
            vectors: where embedding edges take their vectors from.
            unread: lines that the reader of the new trajectories could not decode.
            progress: called with the number of new rows gated so far.
        """
        self._before.refuse_as(out)
        notices = read_notices(self._before.folder)
        rows = (row for row in settled_rows(self._before.folder) if not self._is_revived(row))
        earlier = Earlier(
            rows=rows,
            total=self._total(),
            refuse=refusal(notices),
            files={NOTICES: to_json(notices)} if notices else {},
            before=steps_before(self._before.folder),
        )
        return build(
            judged,
            self._problems.values(),
            self._before.config,
            out,
            inputs=self._before.inputs(inputs),
            previous=self._pools,
            earlier=earlier,
            count=count,
            vectors=vectors,
            unread=unread,
            progress=progress,
        )

    def _total(self) -> str | None:
        """The digest of what came in so far; unknown when rows leave it to be judged again."""
        return None if self.revived else self._before.manifest.inputs.get("trajectories")

    def _is_revived(self, row: Settled) -> bool:
        reason = row.drop.reason if row.drop else ""
        return row.body != b"null" and self._may_revive(row.step, reason, row.ids[1])

    def _may_revive(self, step: str, reason: str, problem_id: str) -> bool:
        return step == KNOWN and reason == "unknown_problem" and problem_id in self._problems


def _judge_of(inputs: Mapping[str, str]) -> tuple[str, ...]:
    """Name and configuration of the reasoning judge that a manifest's inputs name."""
    found = next(((n, d) for n, d in sorted(inputs.items()) if n.startswith(JUDGE)), None)
    return (found[0].removeprefix(JUDGE), found[1]) if found else ("evidence",)


JUDGE = "judge:"
"""Prefix of the reasoning judge among a manifest's inputs; the evidence judge is not named."""
