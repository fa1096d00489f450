"""A few problems of a suite are of all its kinds, and more of them are a superset."""

from __future__ import annotations

from collections.abc import Sequence

from palio.records import Problem


def first_of_each_kind(problems: Sequence[Problem], count: int) -> tuple[Problem, ...]:
    """The first `count` problems, kinds taking turns and easy ones with hard ones; 0 takes all.

    Kinds take turns in the order in which they appear, and within a kind difficulties do, so that
    a short run of a suite sorted by kind is no run of its first kind. What was taken keeps the
    suite's order.
    """
    if not count or count >= len(problems):
        return tuple(problems)
    queues: dict[str, dict[str, list[int]]] = {}
    for place, problem in enumerate(problems):
        queues.setdefault(problem.kind, {}).setdefault(str(problem.difficulty), []).append(place)
    kinds = [_in_turns(list(held.values())) for held in queues.values()]
    taken = sorted(_in_turns(kinds)[:count])
    return tuple(problems[place] for place in taken)


def _in_turns(queues: Sequence[Sequence[int]]) -> list[int]:
    """The first of each queue, then the second of each, and so on."""
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
