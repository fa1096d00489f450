"""What a policy does beside earning reward, counted from the host's record."""

from __future__ import annotations

import json
from collections.abc import Sequence

from palio.judging.answers import SHOWING_TOOLS, product_ids, ungrounded
from palio.records import DispatchEvent, Ending, Record, Trajectory
from palio.world.tools import canonical_arguments

_LONG_LIST = 10
"""Ids of one call; a page of results has 5 or 10, no request wants more than 4."""
_ID_KEYS = ("product_ids", "product_id")


class Audit(Record, frozen=True, omit_defaults=False):
    """Counts of one rollout.

    Attributes:
        turns: assistant turns.
        calls: tool calls carried out.
        errors: calls that a tool answered with an error.
        repeats: calls that ask what an earlier one of the rollout asked.
        no_call: turns without a call.
        cut: turns that ran into the token limit.
        named_ids: product ids that calls named, each once.
        invented_ids: of these, ids that no earlier result and no request shows.
        long_lists: calls that name more than ten ids, or recommend more than are wanted.
        blind_end: whether it recommended or terminated without one result that shows products.
        terminated: whether it ended the run itself.
    """

    turns: int
    calls: int
    errors: int
    repeats: int
    no_call: int
    cut: int
    named_ids: int
    invented_ids: int
    long_lists: int
    blind_end: bool
    terminated: bool


def audit_of(trajectory: Trajectory, *, wanted: int, cut: int = 0) -> Audit:
    """Count what the record shows.

    Args:
        trajectory: of one rollout.
        wanted: ids that the problem asks for.
        cut: turns that ran into the token limit, which the record does not tell.
    """
    turns = [message for message in trajectory.messages if message.role == "assistant"]
    asked: set[str] = set()
    named: dict[str, bool] = {}
    shown: list[str] = [trajectory.query]
    repeats = long_lists = 0
    for event in trajectory.dispatches:
        arguments = canonical_arguments(event.tool, event.arguments)
        key = f"{event.tool} {json.dumps(arguments, sort_keys=True)}"
        repeats += key in asked
        asked.add(key)
        ids = [one for name in _ID_KEYS for one in product_ids(arguments.get(name))]
        most = wanted if event.tool == "recommend_product" else _LONG_LIST
        long_lists += len(ids) > most
        missing = set(ungrounded(ids, shown))
        for one in ids:
            named.setdefault(one, one in missing and one not in trajectory.query)
        if event.tool in SHOWING_TOOLS and not event.error:
            shown.append(event.result)
    return Audit(
        turns=len(turns),
        calls=len(trajectory.dispatches),
        errors=sum(bool(event.error) for event in trajectory.dispatches),
        repeats=repeats,
        no_call=sum(not message.tool_calls for message in turns),
        cut=cut,
        named_ids=len(named),
        invented_ids=sum(named.values()),
        long_lists=long_lists,
        blind_end=_ended(trajectory) and len(shown) == 1,
        terminated=trajectory.ending is Ending.terminated,
    )


def _ended(trajectory: Trajectory) -> bool:
    last = ("recommend_product", "terminate")
    return any(isinstance(e, DispatchEvent) and e.tool in last for e in trajectory.events)


def audit_means(audits: Sequence[Audit]) -> dict[str, float]:
    """Means over rollouts, under the names that logs use."""
    count = max(1, len(audits))
    turns = max(1, sum(audit.turns for audit in audits))
    calls = sum(audit.calls for audit in audits)
    return {
        "calls/per_rollout": calls / count,
        "calls/per_turn": calls / turns,
        "calls/errors": sum(a.errors for a in audits) / max(1, calls),
        "calls/repeats": sum(a.repeats for a in audits) / max(1, calls),
        "turns/per_rollout": sum(a.turns for a in audits) / count,
        "turns/no_call": sum(a.no_call for a in audits) / turns,
        "turns/cut": sum(a.cut for a in audits) / turns,
        "audit/invented_ids": sum(a.invented_ids for a in audits) / count,
        "audit/long_lists": sum(a.long_lists for a in audits) / count,
        "audit/blind_end": sum(a.blind_end for a in audits) / count,
        "audit/terminated": sum(a.terminated for a in audits) / count,
    }


def success_rate(successes: Sequence[bool | None]) -> dict[str, float]:
    """Share of the scored rollouts that succeed, and of all rollouts that are unscored (None).

    No `success` where none is scored: it is not known.
    """
    scored = [each for each in successes if each is not None]
    found = {"unscored": (len(successes) - len(scored)) / max(1, len(successes))}
    return {"success": sum(scored) / len(scored), **found} if scored else found


def group_shares(successes: Sequence[bool | None], group: int) -> dict[str, float]:
    """Share of groups in which no, some or all rollouts succeed; only the mixed ones teach.

    An unscored rollout (None) is neither a success nor a failure of its group. A group without any
    scored one has no part in these shares; `groups/unscored` is the share of such groups among all,
    and is told where there is one.
    """
    parts = [successes[start : start + group] for start in range(0, len(successes), group)]
    scored = [[each for each in part if each is not None] for part in parts]
    groups = [each for each in scored if each]
    count = max(1, len(groups))
    none = sum(not any(each) for each in groups)
    every = sum(all(each) for each in groups)
    found = {
        "groups/all_fail": none / count,
        "groups/mixed": (len(groups) - none - every) / count,
        "groups/all_success": every / count,
    }
    lost = len(parts) - len(groups)
    return {**found, "groups/unscored": lost / len(parts)} if lost else found
