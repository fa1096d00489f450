"""A source is taken out of a corpus, and what is left is the corpus that never had it.

The old version stays as it is. Rows that the source had displaced come back; its rejected rows go
with its kept ones; a notice stays in the corpus, so that the source cannot return with a later day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from palio.corpus.build import build, read_pools
from palio.corpus.earlier import Earlier, Settled, settled_rows, steps_before
from palio.corpus.funnel import Funnel
from palio.corpus.gates import Drop, Gate
from palio.corpus.origin import file_name, ran_by
from palio.corpus.salvage.mark import salvaged_from
from palio.corpus.screening import TAKEN_DOWN
from palio.corpus.standing import Standing
from palio.records import InputError, Problem, Record, from_json, to_json
from palio.rollout.verdicts import Judged

NOTICES = "takedowns.json"


class Notice(Record, frozen=True):
    """What was taken down, by ids; a row goes when any of them names it.

    Attributes:
        agents: agent names.
        trajectories: trajectory ids.
        problems: problem ids; the problems themselves stay in the split, so that nothing moves.
        sources: sources of the lineage ("rollout", "chat:day-3.jsonl"), or the file name alone.
        why: for people; published with the corpus.
        day: date of the take-down as given by the caller, "" when none was.
        rows: kept rows that went.
        rejects: rejected rows that went.
        removed: trajectory ids of all rows that went; rows made of them by salvage went too.
    """

    agents: tuple[str, ...] = ()
    trajectories: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    why: str = ""
    day: str = ""
    rows: int = 0
    rejects: int = 0
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it names anything."""
        return bool(self.agents or self.trajectories or self.problems or self.sources)


class Named:
    """Tells which notice names a row; sets, since a notice may list a day's trajectories."""

    def __init__(self, notices: Sequence[Notice]) -> None:
        self._notices: list[tuple[Notice, list[frozenset[str]]]] = []
        for one in notices:
            made = (*one.trajectories, *one.removed)
            lists = (one.trajectories, made, one.problems, one.agents, one.sources)
            self._notices.append((one, [frozenset(names) for names in lists]))

    def by(self, ids: tuple[str, str, str], source: str) -> Notice | None:
        """The first notice that names a row with these ids (trajectory, problem, agent)."""
        trajectory, problem, agent = ids
        for notice, (trajectories, made, problems, agents, sources) in self._notices:
            if trajectory in trajectories or salvaged_from(source) in made:
                return notice
            if problem in problems or not agents.isdisjoint((agent, ran_by(agent))):
                return notice
            if source in sources or (file_name(source) or source) in sources:
                return notice
        return None


def read_notices(folder: Path) -> tuple[Notice, ...]:
    """The take-downs of a corpus so far, oldest first; none where the file is missing.

    Raises:
        InputError: the file is something else.
    """
    path = folder / NOTICES
    if not path.is_file():
        return ()
    return from_json(path.read_bytes(), tuple[Notice, ...], where=str(path))


def refusal(notices: Sequence[Notice]) -> Gate | None:
    """A gate that keeps taken-down sources out of later builds; None without notices."""
    if not notices:
        return None

    named = Named(notices)

    def gate(judged: Judged, _config: object) -> Drop | None:
        run = judged.trajectory
        notice = named.by((run.trajectory_id, run.problem_id, run.agent.name), run.source)
        return Drop(reason=TAKEN_DOWN, detail=notice.why) if notice else None

    return gate


def take_down(
    before: Standing, notice: Notice, problems: Iterable[Problem], out: Path
) -> tuple[Funnel, Notice]:
    """Write the corpus that never had what the notice names.

    Nothing is judged again. Rows that were rejected as a repetition of a row that goes are gated
    now; rows that were outranked are ranked again; pools do not move.

    Args:
        before: the corpus as it is.
        notice: what goes; its counts are filled in.
        problems: the problems of the corpus.
        out: another folder.

    Returns:
        The new funnel, and the notice with its counts as it stands in the new corpus.

    Raises:
        InputError: the notice names nothing, or nothing that is in the corpus; `out` is the corpus.
        IntegrityError: as `build.build`.
    """
    before.refuse_as(out)
    if not notice:
        raise InputError("nothing is named", remedy="name an agent, trajectory, problem or source")
    done = _counted(before, notice)
    notices = (*read_notices(before.folder), done)
    return _rebuilt(before, notices, problems, out), done


def _counted(before: Standing, notice: Notice) -> Notice:
    """The notice with what it removes: rows that it names, and rows made of them."""
    gone: set[str] = set()
    for named in (Named([notice]), None):
        named = named or Named([msgspec.structs.replace(notice, removed=tuple(gone))])
        rows = rejects = 0
        for row in settled_rows(before.folder):
            if named.by(row.ids, row.source):
                gone.add(row.ids[0])
                rows, rejects = rows + row.kept, rejects + (not row.kept)
    if not rows and not rejects:
        raise InputError(
            "no row of the corpus is named by this take-down",
            where=str(before.folder),
            remedy="`palio corpus show` and provenance.jsonl have the ids and sources",
        )
    removed = tuple(sorted(gone - {""}))
    return msgspec.structs.replace(notice, rows=rows, rejects=rejects, removed=removed)


def _rebuilt(
    before: Standing,
    notices: tuple[Notice, ...],
    problems: Iterable[Problem],
    out: Path,
) -> Funnel:
    named = Named(notices[-1:])
    gone = frozenset(notices[-1].removed)

    def left() -> Iterator[Settled]:
        rows = settled_rows(before.folder)
        return (row for row in rows if not named.by(row.ids, row.source))

    def is_free(row: Settled) -> bool:
        """Whether the row was a repetition of one that goes."""
        repeated = row.drop is not None and row.drop.reason == "repeated_id"
        return repeated and row.ids[0] in gone and row.body != b"null"

    return build(
        (from_json(row.body, Judged, where=row.ids[0]) for row in left() if is_free(row)),
        problems,
        before.config,
        out,
        inputs=before.inputs(),
        previous=read_pools(before.folder),
        earlier=Earlier(
            rows=(row for row in left() if not is_free(row)),
            total=None,
            files={NOTICES: to_json(notices)},
            before=steps_before(before.folder),
        ),
    )
