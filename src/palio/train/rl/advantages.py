"""Dr. GRPO's advantages: reward minus the group's mean, nothing divided by a spread or a length.

Source: Liu et al., Understanding R1-Zero-Like Training (arXiv 2503.20783). Per step:
A[t] = turn_weight * A_turn[t] + outcome_weight * A_outcome. A turn that a rollout never reached
counts as reward 0 in the mean of that step, so that stopping early is never better than average.
A turn that the teacher did not answer for is no statement: it is in no mean and has advantage 0.

Two turns of one number need not have equally much before them. `to_go` is a sum, so that of two
rollouts that do at each turn what the teacher would, the longer one is paid for its length at every
turn that they share, and the shorter one fined. `to_go_mean` is a share of what was left to earn,
and both have all of it. It needs no 0 for turns that were not reached: who ends where the teacher
would go on has earned nothing with the last turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

CreditKind = Literal["step", "to_go", "to_go_mean"]
"""`step`: each turn answers for its own credit; `to_go`: for its own and all later ones;
`to_go_mean`: for their mean, held against those that reached the turn."""


def outcome_advantages(rewards: Sequence[float | None], group: int) -> list[float]:
    """Reward minus the mean of its group; groups stand one after the other.

    A reward of None (unscored) is left out of the mean and has advantage 0.
    """
    out: list[float] = []
    for start in range(0, len(rewards), group):
        part = rewards[start : start + group]
        scored = [reward for reward in part if reward is not None]
        mean = sum(scored) / len(scored) if scored else 0.0
        out += [0.0 if reward is None else reward - mean for reward in part]
    return out


def turn_advantages(
    earned: Sequence[Sequence[float | None] | None], group: int, kind: CreditKind = "step"
) -> list[list[float]]:
    """Each turn's credit minus the mean of that turn over the group.

    Args:
        earned: rollout -> credit of each of its turns, None where the teacher did not answer; None:
            unscored. Neither has a part in a mean.
        group: rollouts of one problem, standing one after the other.
        kind: what a turn answers for.

    Returns:
        rollout -> advantage of each of its turns, as many as it has credits.
    """
    out: list[list[float]] = []
    for start in range(0, len(earned), group):
        valued = [
            None if each is None else _valued(each, kind) for each in earned[start : start + group]
        ]
        scored = [each for each in valued if each is not None]
        longest = max((len(each) for each in scored), default=0)
        missing = None if kind == "to_go_mean" else 0.0
        means = [_mean(scored, turn, missing) for turn in range(longest)]
        out += [
            []
            if each is None
            else [0.0 if one is None else one - means[turn] for turn, one in enumerate(each)]
            for each in valued
        ]
    return out


def _mean(scored: Sequence[Sequence[float | None]], turn: int, missing: float | None) -> float:
    """Of one turn over a group; `missing` is that of a rollout that ended before it."""
    values = [each[turn] if turn < len(each) else missing for each in scored]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


def _valued(earned: Sequence[float | None], kind: CreditKind) -> list[float | None]:
    """What each turn answers for; with later ones nobody knows it before an unknown credit."""
    if kind == "step":
        return list(earned)
    total: float | None = 0.0
    out: list[float | None] = []
    for left, credit in enumerate(reversed(earned), start=1):
        total = None if total is None or credit is None else total + credit
        out.append(total if total is None or kind == "to_go" else total / left)
    return out[::-1]


def token_advantages(
    width: int,
    spans: Sequence[tuple[int, int]],
    turns: Sequence[float],
    outcome: float,
    *,
    turn_weight: float,
    outcome_weight: float,
) -> list[float]:
    """One row of the (B, T) matrix that the loss multiplies with; 0 outside the turns.

    Args:
        width: T, tokens of the longest completion.
        spans: places of each turn's tokens in the completion.
        turns: A_turn of each turn; [] where there is none.
        outcome: A_outcome of the rollout.
        turn_weight: what A_turn is multiplied with.
        outcome_weight: what A_outcome is multiplied with.
    """
    row = [0.0] * width
    for number, (start, end) in enumerate(spans):
        own = turns[number] if number < len(turns) else 0.0
        row[start:end] = [turn_weight * own + outcome_weight * outcome] * (end - start)
    return row
