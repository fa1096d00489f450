"""Candidates of one problem are ranked by the paper's four signals, each a number in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

from palio.corpus.config import RankingWeights
from palio.corpus.conversation import CHECKS, RECOMMEND, SEARCHES, Call, calls_of, ids_in
from palio.records import Message, Record

DEEP = 12
"""Thinking turns plus calls at which depth is full: one above the most that a scripted careful
agent needs for a two-item voucher problem, so that more of the same earns nothing."""

MANY_QUERIES = 4
"""Different searches at which reformulation is full."""


class Signals(Record, frozen=True, omit_defaults=False):
    """The four structural signals of one conversation (paper, ranking), each in [0, 1].

    Attributes:
        depth: thinking turns and calls, full at `DEEP`.
        reformulations: different searches beyond the first, full at `MANY_QUERIES`.
        verification: share of the recommended ids whose details were read before recommending.
        regularity: share of turns that think and act, times the share of calls that are no repeat.
    """

    depth: float
    reformulations: float
    verification: float
    regularity: float

    def score(self, weights: RankingWeights) -> float:
        """Weighted mean in [0, 1]."""
        total = weights.depth + weights.reformulations + weights.verification + weights.regularity
        weighted = (
            weights.depth * self.depth
            + weights.reformulations * self.reformulations
            + weights.verification * self.verification
            + weights.regularity * self.regularity
        )
        return weighted / total if total else 0.0


def signals(messages: Sequence[Message]) -> Signals:
    """Measure one conversation."""
    calls = calls_of(messages)
    assistant = [message for message in messages if message.role == "assistant"]
    thinking = sum(1 for message in assistant if (message.reasoning_content or "").strip())
    acting = sum(
        1
        for message in assistant
        if (message.reasoning_content or "").strip() and (message.tool_calls or message.content)
    )
    different = len({call.identity for call in calls})
    searches = len({call.identity for call in calls if call.name in SEARCHES})
    return Signals(
        depth=min(1.0, (thinking + len(calls)) / DEEP),
        reformulations=min(1.0, max(0, searches - 1) / (MANY_QUERIES - 1)),
        verification=_verified_share(calls),
        regularity=(acting / len(assistant)) * (different / len(calls)) if calls else 0.0,
    )


def _verified_share(calls: Sequence[Call]) -> float:
    checked: set[str] = set()
    for call in calls:
        if call.name in CHECKS:
            checked.update(ids_in(call.arguments))
        elif call.name == RECOMMEND:
            wanted = ids_in(call.arguments)
            return sum(1 for name in wanted if name in checked) / len(wanted) if wanted else 0.0
    return 0.0
