"""One record in: its rows as columns, or a reject with file, line, step and reason.

Two ways give the same result. The general one reads any format and asks the gates themselves. The
direct ones (`palio.corpus.shards.direct` for clean chat rows, `.own` for palio's own) serve what
needs no second look and hand everything else over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from palio.corpus.gates import Drop, TokenCount, row_steps
from palio.corpus.ranking import signals
from palio.corpus.readers.losses import Loss
from palio.corpus.readers.reading import OWN, Found, RecordReader
from palio.corpus.readers.sources import RawRecord
from palio.corpus.shards.columns import Kept, conversation_key, run_of, talk_of
from palio.corpus.shards.config import STEPS, ShardConfig
from palio.corpus.shards.direct import DirectReader, Doubtful
from palio.corpus.shards.own import OwnReader
from palio.corpus.shards.passing import Dropped
from palio.judging.richness import richness_verdict
from palio.records import Record, Trajectory, to_json
from palio.rollout.verdicts import Judged, Verdicts

READ, CHAT = "read", "chat"
MALFORMED = "unreadable_malformed"
"""Reason of a row that was read, and that a gate could not look at: a fault of no known party."""


class ShardReject(Record, frozen=True, omit_defaults=False):
    """A record that could not be read, or a row that a gate dropped.

    Attributes:
        file: as it was named.
        line: 1-based, where the record starts.
        step: "read", or the step of the gates.
    """

    file: str
    line: int
    step: str
    reason: str
    detail: str
    trajectory_id: str = ""
    problem_id: str = ""
    agent: str = ""


class Screen:
    """Screens the records of one file in order, and counts.

    Args:
        file: its name, for rejects and for the source of each trajectory.
        config: formats and gates.
        count: exact tokens of a row; asked only where bytes exceed the budget.
        direct: whether clean rows take a direct way.

    Attributes:
        formats: trajectories by format; losses: changes by code; rejected: rows by reason.
        rows: trajectories and unreadable records so far.
        max_bytes: longest record that is read.
    """

    def __init__(
        self,
        file: str,
        config: ShardConfig,
        count: TokenCount | None = None,
        *,
        direct: bool = True,
    ) -> None:
        self.formats: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.rows = 0
        self.max_bytes = config.max_bytes
        self._file = file
        self._corpus = config.corpus
        self._steps = [step for step in row_steps(count) if step[0] in STEPS]
        self._reader = RecordReader(config.format, config.max_bytes)
        chat, own = (direct and config.format in ("auto", name) for name in (CHAT, OWN))
        self._direct = DirectReader(file, config.corpus, self._steps) if chat else None
        self._own = OwnReader(config.corpus, self._steps) if own else None

    def take(self, raw: RawRecord) -> Iterable[Kept | ShardReject]:
        """The rows of the next record; ask for all of them before the record after it."""
        if not raw.fault:
            read: Kept | Dropped | Doubtful | None = None
            if self._own is not None and (read := self._own.read(raw)) is not None:
                return self._served(read, raw.line, OWN)
            if self._direct is not None and (read := self._direct.read(raw)) is not None:
                return self._served(read, raw.line, CHAT)
        return self._general(self._reader.read(self._file, raw))

    def _served(
        self, read: Kept | Dropped | Doubtful, line: int, form: str
    ) -> Iterable[Kept | ShardReject]:
        """What a direct way read, after what was waiting."""
        before = tuple(self._ended()) if self._reader.waiting else ()
        self.rows += 1
        self.formats[form] += 1
        if isinstance(read, Kept):
            return (*before, read)
        if isinstance(read, Dropped):
            return (*before, self._gone(*read, line=line))
        if read.judged is not None:
            step, drop = self._dropped(read.judged)
            if drop is not None:
                return (*before, self._drop(step, drop, read.judged.trajectory, line))
        return (*before, self._whole(read.whole(), (), line, form))

    def end(self) -> Iterator[Kept | ShardReject]:
        """What was held back until the file ended."""
        yield from self._ended()

    def _ended(self) -> Iterator[Kept | ShardReject]:
        yield from self._general(self._reader.end(self._file))

    def _general(self, found: Iterator[Found]) -> Iterator[Kept | ShardReject]:
        for one in found:
            self.rows += 1
            self.formats[one.format] += 1
            self.losses.update(loss.code for loss in one.losses)
            yield self._whole(one.trajectory, one.losses, one.line, one.format)
        for reject in self._reader.rejects:
            self.rows += 1
            yield self._reject(
                ShardReject(
                    file=reject.file,
                    line=reject.line,
                    step=READ,
                    reason=f"unreadable_{reject.reason}",
                    detail=reject.detail,
                )
            )
        self._reader.rejects.clear()

    def _whole(
        self, trajectory: Trajectory, losses: tuple[Loss, ...], line: int, form: str
    ) -> Kept | ShardReject:
        try:
            return self._judge(trajectory, losses, line, form)
        except Exception as error:  # noqa: BLE001 - one row that gates choke on must not end a shard
            detail = f"{type(error).__name__}: {error}"[:300]
            ids = (trajectory.trajectory_id, trajectory.problem_id, trajectory.agent.name)
            return self._gone(READ, Drop(reason=MALFORMED, detail=detail), *ids, line=line)

    def _judge(
        self, trajectory: Trajectory, losses: tuple[Loss, ...], line: int, form: str
    ) -> Kept | ShardReject:
        verdict = richness_verdict(trajectory, self._corpus.agentic, self._corpus.subtask)
        judged = Judged(trajectory=trajectory, verdicts=Verdicts(richness=verdict))
        step, drop = self._dropped(judged)
        if drop is not None:
            return self._drop(step, drop, trajectory, line)
        run, events = run_of(trajectory)
        return Kept(
            **{name: getattr(trajectory, name) for name in Kept._fields[:4]},
            agent=trajectory.agent.name,
            messages=talk_of(trajectory.messages),
            tools=to_json(trajectory.tools).decode(),
            run=run,
            events=events,
            line=line,
            format=form,
            losses=to_json(losses).decode() if losses else None,
            key=conversation_key(trajectory.messages),
            evidence=verdict.evidence,
            axis=verdict.axis,
            richness=verdict.richness,
            emitted=verdict.emitted,
            dispatched=verdict.dispatched,
            **msgspec.structs.asdict(signals(trajectory.messages)),
        )

    def _drop(self, step: str, drop: Drop, trajectory: Trajectory, line: int) -> ShardReject:
        ids = (trajectory.trajectory_id, trajectory.problem_id, trajectory.agent.name)
        return self._gone(step, drop, *ids, line=line)

    def _gone(
        self, step: str, drop: Drop, trajectory_id: str, problem_id: str, agent: str, *, line: int
    ) -> ShardReject:
        return self._reject(
            ShardReject(
                file=self._file,
                line=line,
                step=step,
                reason=drop.reason,
                detail=drop.detail,
                trajectory_id=trajectory_id,
                problem_id=problem_id,
                agent=agent,
            )
        )

    def _dropped(self, judged: Judged) -> tuple[str, Drop | None]:
        for step, gates in self._steps:
            for gate in gates:
                drop = gate(judged, self._corpus)
                if drop is not None:
                    return step, drop
        return "", None

    def _reject(self, reject: ShardReject) -> ShardReject:
        self.rejected[reject.reason] += 1
        return reject
