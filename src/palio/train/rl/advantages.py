"""Dr. GRPO's advantages: reward minus the group's mean, nothing divided by a spread or a length.

Source: Liu et al., Understanding R1-Zero-Like Training (arXiv 2503.20783). Per step:
A[t] = turn_weight * A_turn[t] + outcome_weight * A_outcome. A turn that a rollout never reached
counts as reward 0 in the mean of that step, so that stopping early is never better than average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

CreditKind = Literal["step", "to_go"]
"""`step`: each turn answers for its own credit; `to_go`: for its own and all later ones."""


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
    earned: Sequence[Sequence[float] | None], group: int, kind: CreditKind = "step"
) -> list[list[float]]:
    """Each turn's credit minus the mean of that turn over the group.

    Args:
        earned: rollout -> credit of each of its turns; None: unscored, left out of the mean.
        group: rollouts of one problem, standing one after the other.
        kind: what a turn answers for.

    Returns:
        rollout -> advantage of each of its turns, as many as it has credits.
    """
    out: list[list[float]] = []
    for start in range(0, len(earned), group):
        part = earned[start : start + group]
        valued = [None if each is None else _valued(each, kind) for each in part]
        scored = [each for each in valued if each is not None]
        longest = max((len(each) for each in scored), default=0)
        means = [
            sum(each[turn] for each in scored if turn < len(each)) / len(scored)
            for turn in range(longest)
        ]
        out += [
            [] if each is None else [value - means[turn] for turn, value in enumerate(each)]
            for each in valued
        ]
    return out


def _valued(earned: Sequence[float], kind: CreditKind) -> list[float]:
    if kind == "step":
        return list(earned)
    total, out = 0.0, []
    for credit in reversed(earned):
        total += credit
        out.append(total)
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
