"""Whether the decision of each run followed its data: every run forked, every fork counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from palio.evaluate.counterfactual.edits import Change, edited_tools
from palio.evaluate.counterfactual.forking import (
    Decisions,
    Forked,
    Forker,
    broken,
    decisions,
    emitted_departure,
    obstacle,
)
from palio.evaluate.counterfactual.planning import Arm, Intervention, Planner, unfaithful
from palio.evaluate.counterfactual.told import Told
from palio.records import Record, Trajectory
from palio.world.tools import Toolbox
from palio.world.world import World

Outcome = Literal["answer", "path", "none"]
"""Another product is recommended; another search or view is made; nothing is decided otherwise."""


class Fork(Record, frozen=True, omit_defaults=False):
    """One change of one run, and what the run did then.

    Attributes:
        flipped: "answer" and "path" are flips; a copy flips when the new id is recommended.
        emitted: a flip whose first decision that differs a completion asked for; where the
            agent's code made it, no thinking of a model did.
        answer: what was recommended after the change.
    """

    arm: Arm
    kind: str
    cited: bool
    product_id: str
    rival: str
    changes: tuple[Change, ...]
    seq: int
    outcome: Outcome
    flipped: bool
    emitted: bool
    answer: tuple[str, ...]


class ForkedRun(Record, frozen=True, omit_defaults=False):
    """One recorded run and its forks.

    Attributes:
        unforkable: why it could not be forked, "" if it was.
        answer: what it recommended.
    """

    trajectory_id: str
    problem_id: str
    agent: str
    unforkable: str = ""
    answer: tuple[str, ...] = ()
    forks: tuple[Fork, ...] = ()

    def rate(self, arm: Arm, *, emitted: bool = False) -> float | None:
        """Share of its forks of an arm that flipped; None when it has none.

        Args:
            arm: which forks.
            emitted: count only flips that a completion asked for.
        """
        forks = [fork for fork in self.forks if fork.arm == arm]
        flips = [fork.emitted if emitted else fork.flipped for fork in forks]
        return sum(flips) / len(flips) if flips else None


def fork_run(run: Trajectory, forker: Forker, planner: Planner) -> ForkedRun:
    """Fork one run at every datum that is planned; one fork that changes nothing comes first.

    That null fork must decide what the record decided, or no flip of this run could be told from
    the model's own unsteadiness. The first fork that infrastructure breaks ends the forking of this
    run: its rates would be those of the forks that happened to come before.
    """
    plain = Toolbox(planner.world)
    why = obstacle(run, forker.spec)
    if not why and unfaithful(run, plain) is not None:
        why = "a result is not this world's answer"
    if why:
        return _unforkable(run, why)
    plan = planner.plan(Told(run))
    if not any(one.arm == "treatment" for one in plan):
        return _unforkable(run, "no decisive datum was shown")
    first = min(one.at for one in plan)
    null = forker.fork(run, first, plain, planner.world)
    if why := _spoiled(null):
        return _unforkable(run, why)
    if decisions(null.run, first)[:2] != decisions(run, first)[:2]:
        return _unforkable(run, "decides otherwise without any change")
    forks = []
    for one in plan:
        made = forker.fork(run, one.at, edited_tools(planner.world, one.changes), planner.world)
        if why := _spoiled(made):
            return _unforkable(run, why)
        forks.append(_counted(run, one, made.run))
    return ForkedRun(
        trajectory_id=run.trajectory_id,
        problem_id=run.problem_id,
        agent=run.agent.name,
        answer=decisions(run, first).answer,
        forks=tuple(forks),
    )


def _spoiled(made: Forked) -> str:
    """Why what a fork did says nothing of its change, "" if it does."""
    why = broken(made.run)
    if why:
        return f"in a fork {why}"
    return "departs from its record before the fork" if made.departed else ""


def _unforkable(run: Trajectory, why: str) -> ForkedRun:
    return ForkedRun(
        trajectory_id=run.trajectory_id,
        problem_id=run.problem_id,
        agent=run.agent.name,
        unforkable=why,
    )


def _counted(run: Trajectory, one: Intervention, forked: Trajectory) -> Fork:
    names = {change.after: change.before for change in one.changes if change.field == "product_id"}
    before, after = decisions(run, one.at), decisions(forked, one.at, names)
    outcome = _outcome(before, after)
    raw = decisions(forked, one.at).answer
    flipped = outcome != "none" if one.arm != "copy" else any(name in raw for name in names)
    return Fork(
        arm=one.arm,
        kind=one.kind,
        cited=one.cited,
        product_id=one.product_id,
        rival=one.rival,
        changes=one.changes,
        seq=run.dispatches[one.at].seq,
        outcome=outcome,
        flipped=flipped,
        emitted=flipped and emitted_departure(before, after),
        answer=raw,
    )


def _outcome(before: Decisions, after: Decisions) -> Outcome:
    if before.answer != after.answer:
        return "answer"
    return "path" if before.path != after.path else "none"


def fork_runs(
    runs: Iterable[Trajectory],
    forkers: Mapping[str, Forker],
    worlds: Iterable[World],
    *,
    most: int = 3,
    threads: int = 1,
    progress: Callable[[ForkedRun], None] | None = None,
) -> tuple[ForkedRun, ...]:
    """Fork runs, in their order; results do not depend on `threads`.

    Args:
        runs: recorded runs.
        forkers: by agent name; runs of other agents are counted as unforkable.
        worlds: where the runs were recorded; runs of other catalogues are counted as unforkable.
        most: treatments, and placebos, of one run.
        threads: runs in flight; worth it where a model answers many requests at once.
        progress: called in this thread with each run.
    """
    planners = {world.catalogue.digest: Planner(world, most) for world in worlds}

    def one(run: Trajectory) -> ForkedRun:
        forker, planner = forkers.get(run.agent.name), planners.get(run.catalogue_digest)
        if forker is None:
            return _unforkable(run, "the agent's file is not at hand")
        if planner is None:
            return _unforkable(run, "its catalogue is not at hand")
        return fork_run(run, forker, planner)

    found = []
    with ThreadPoolExecutor(threads, thread_name_prefix="fork") as pool:
        for forked in pool.map(one, runs):
            found.append(forked)
            if progress is not None:
                progress(forked)
    return tuple(found)
