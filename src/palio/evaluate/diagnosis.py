"""Where a policy leaves its teacher: the first call that the teacher would not have made there.

The teacher is asked on the policy's own history, turn by turn, so that every turn before the first
departure is one that both would have taken, and the departure itself is the policy's own. A search
with other words that brings the same page is no departure: in this world the two are one call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palio.broker.first_request import FirstRequest
from palio.broker.upstream import RejectedError, Upstream
from palio.broker.wire import read_completion
from palio.evaluate.behaviour import is_valid_turn
from palio.evaluate.rollouts import RolloutRow, read_scores
from palio.evaluate.statistics import Proportion, wilson
from palio.records import KINDS, InputError, Message, Record, Trajectory
from palio.world.tools import Toolbox, canonical_arguments

SEARCHES = ("find_product", "find_products_in_same_shop")
FOLLOWED, NO_CALL, INVALID = "followed to the end", "no call", "invalid call"
TEACHER_REFUSED = "teacher refused"
"""No departure that anybody knows of: the teacher cannot read a history that the policy could."""
Call = tuple[str, dict[str, Any]]
"""Tool and canonical arguments."""


class Departure(Record, frozen=True, omit_defaults=False):
    """The first departure of one rollout.

    Attributes:
        kind: what went otherwise, e.g. "search: price" or "recommend: other id"; `TEACHER_REFUSED`
            where the teacher's server refused the history, mostly for its length.
        turn: of the departure, or of what was refused, from 0; the number of turns when there was
            neither.
        asked, expected: the calls of that turn as the policy and the teacher made them.
    """

    problem_id: str
    problem_kind: str
    success: bool
    kind: str
    turn: int
    asked: tuple[Call, ...] = ()
    expected: tuple[Call, ...] = ()


class DepartureCount(Record, frozen=True, omit_defaults=False):
    """One kind of departure.

    Attributes:
        failed, succeeded: rollouts that departed so first.
        by_kind: of the failed ones, by kind of problem.
        success: success rate after this departure; Wilson's interval takes rollouts as independent,
            so it is too narrow where problems were sampled several times.
        turn: mean turn of the departure.
        example: id of a failed problem, "" when there is none.
    """

    kind: str
    failed: int
    succeeded: int
    by_kind: dict[str, int]
    success: Proportion
    turn: float
    example: str


class Diagnosis(Record, frozen=True, omit_defaults=False):
    """First departures of all scored rollouts, those behind most failures first."""

    policy: str
    teacher: str
    n: int
    failed: int
    departures: tuple[DepartureCount, ...]


def diagnose(
    rows: Iterable[RolloutRow],
    kinds: Mapping[str, str],
    teacher: Upstream,
    model: str,
    toolbox: Callable[[Trajectory], Toolbox],
    *,
    policy: str = "",
    profile: str = "oro",
    progress: Callable[[int], None] | None = None,
) -> tuple[Diagnosis, list[Departure]]:
    """Ask the teacher about every turn until the first departure.

    Args:
        rows: rollouts; of several attempts at one problem and sample the last counts, and those
            that infrastructure failed count nowhere.
        kinds: problem id -> kind.
        teacher: answers chat completions; must be deterministic for the result to be.
        model: its name.
        toolbox: the tools of a trajectory's world, to see whether two searches are one.
        policy: what tables call the policy.
        profile: whose success counts.
        progress: called with the number of rollouts done.

    Raises:
        UpstreamError: the teacher cannot be asked, or its server refuses a first turn, before which
            there is nothing but the request and the tools.
    """
    teacher = FirstRequest(teacher)
    last = {(row.score.problem_id, row.sample): row for row in rows}
    scored = [row for row in last.values() if row.score.status == "scored"]
    found = []
    for done, row in enumerate(scored, start=1):
        kind, turn, asked, expected = first_departure(
            row.trajectory, teacher, model, toolbox(row.trajectory)
        )
        found.append(
            Departure(
                problem_id=row.score.problem_id,
                problem_kind=kinds.get(row.score.problem_id, ""),
                success=row.score.success.get(profile, False),
                kind=kind,
                turn=turn,
                asked=tuple(asked),
                expected=tuple(expected),
            )
        )
        if progress:
            progress(done)
    return _counted(found, policy, model), found


def check_suite_of(evaluation: Path, problems: Collection[str]) -> None:
    """Refuse to read an evaluation by the problems of another suite.

    Raises:
        InputError: the evaluation has a problem that is not among them, or there is none.
    """
    ran = {problem for problem, _ in read_scores(evaluation)}
    strange = sorted(ran - set(problems))
    if strange:
        raise InputError(
            f"the suite does not have {len(strange)} of its {len(ran)} problems, "
            f"{strange[0]!r} first",
            where=str(evaluation),
            remedy="name the suite that the evaluation used",
        )


def first_departure(
    trajectory: Trajectory, teacher: Upstream, model: str, toolbox: Toolbox
) -> tuple[str, int, Sequence[Call], Sequence[Call]]:
    """(kind, turn, the policy's calls, the teacher's calls) of the first departure."""
    offered = {str(tool.get("function", {}).get("name")) for tool in trajectory.tools}
    turns = 0
    for place, message in enumerate(trajectory.messages):
        if message.role != "assistant":
            continue
        asked = asked_by(message)
        try:
            expected = asked_by(_answer(teacher, model, trajectory, place))
        except RejectedError:
            return TEACHER_REFUSED, turns, asked, ()
        if not asked and not expected:  # both end in words alone
            turns += 1
            continue
        if not asked:
            return NO_CALL, turns, asked, expected
        if not is_valid_turn(message, offered):
            return INVALID, turns, asked, expected
        if kind := difference(asked, expected, toolbox):
            return kind, turns, asked, expected
        turns += 1
    return FOLLOWED, turns, (), ()


def _answer(teacher: Upstream, model: str, trajectory: Trajectory, place: int) -> Message:
    body = {
        "model": model,
        "messages": [message.to_openai() for message in trajectory.messages[:place]],
        "tools": list(trajectory.tools),
        "temperature": 0.0,
    }
    return read_completion(teacher.complete(body))[0]


def asked_by(message: Message) -> list[Call]:
    """The calls of a turn."""
    return [
        (call.function.name, canonical_arguments(call.function.name, call.function.arguments))
        for call in message.tool_calls
    ]


def difference(asked: Sequence[Call], expected: Sequence[Call], toolbox: Toolbox) -> str:
    """What the first differing call of a turn does otherwise; "" where the turns are one."""
    for (tool, arguments), (other, wanted) in zip(asked, expected, strict=False):
        if tool != other:
            return f"{tool} instead of {other}"
        if arguments == wanted or _same_page(tool, arguments, wanted, toolbox):
            continue
        if tool in SEARCHES:
            both = wanted.keys() | arguments.keys()
            changed = {
                "words" if k == "q" else k for k in both if wanted.get(k) != arguments.get(k)
            }
            return "search: " + " and ".join(sorted(changed))
        return f"{tool}: other arguments"
    if len(asked) != len(expected):
        return "fewer calls in a turn" if len(asked) < len(expected) else "more calls in a turn"
    return ""


def _same_page(tool: str, one: dict[str, Any], other: dict[str, Any], toolbox: Toolbox) -> bool:
    if tool not in SEARCHES:
        return False
    first, second = toolbox.call(tool, one), toolbox.call(tool, other)
    return not first.error and first.result == second.result


def _counted(found: Sequence[Departure], policy: str, teacher: str) -> Diagnosis:
    by_kind: defaultdict[str, list[Departure]] = defaultdict(list)
    for each in found:
        by_kind[each.kind].append(each)
    counts = []
    for kind, group in by_kind.items():
        failed = [one for one in group if not one.success]
        kinds = Counter(one.problem_kind for one in failed)
        counts.append(
            DepartureCount(
                kind=kind,
                failed=len(failed),
                succeeded=len(group) - len(failed),
                by_kind={name: kinds[name] for name in (*KINDS, "") if kinds[name]},
                success=wilson(len(group) - len(failed), len(group)),
                turn=sum(one.turn for one in group) / len(group),
                example=min((one.problem_id for one in failed), default=""),
            )
        )
    counts.sort(key=lambda count: (-count.failed, -count.succeeded, count.kind))
    failures = sum(not each.success for each in found)
    return Diagnosis(
        policy=policy, teacher=teacher, n=len(found), failed=failures, departures=tuple(counts)
    )
