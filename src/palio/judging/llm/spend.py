"""What a batch cost: every paid try counts, and what is not known is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping

from palio.judging.llm.config import Price
from palio.judging.llm.server import Reply
from palio.records.base import Record


class Spend(Record, frozen=True, omit_defaults=False):
    """Accounting of one model, or of all.

    Attributes:
        requests: that reached a server and brought a reply.
        retries: further tries among all that were made, failed ones included.
        cached: verdicts from replies that were kept.
        prompt_tokens: sum over replies; None when some server did not report them.
        cost: US dollars; None when a price or a token count is unknown.
    """

    requests: int
    retries: int
    cached: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None


def cost_of(reply: Reply, price: Price | None) -> float | None:
    """US dollars of one reply, None when the price or a token count is unknown."""
    if price is None or reply.prompt_tokens is None or reply.completion_tokens is None:
        return None
    dollars = reply.prompt_tokens * price.input + reply.completion_tokens * price.output
    return dollars / 1_000_000


class Meter:
    """Adds up replies by model."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices
        self._replies: dict[str, list[Reply]] = {}
        self._retries: dict[str, int] = {}
        self._cached: dict[str, int] = {}

    def price(self, model: str) -> Price | None:
        """The price of a model, None when it is not in the table."""
        return self._prices.get(model)

    def paid(self, model: str, reply: Reply) -> None:
        """A server sent a reply, usable or not."""
        # the text is not needed and may be long
        measured = Reply(
            content=None,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
        )
        self._replies.setdefault(model, []).append(measured)

    def retried(self, model: str) -> None:
        """Another try is made."""
        self._retries[model] = self._retries.get(model, 0) + 1

    def reused(self, model: str) -> None:
        """A kept reply served."""
        self._cached[model] = self._cached.get(model, 0) + 1

    def by_model(self) -> dict[str, Spend]:
        """Model -> what was spent on it."""
        names = sorted({*self._replies, *self._retries, *self._cached})
        return {name: self._spend([name]) for name in names}

    def total(self) -> Spend:
        """All models together."""
        return self._spend(sorted({*self._replies, *self._retries, *self._cached}))

    def _spend(self, names: list[str]) -> Spend:
        replies = [(name, one) for name in names for one in self._replies.get(name, ())]
        costs = [cost_of(one, self._prices.get(name)) for name, one in replies]
        return Spend(
            requests=len(replies),
            retries=sum(self._retries.get(name, 0) for name in names),
            cached=sum(self._cached.get(name, 0) for name in names),
            prompt_tokens=_sum([one.prompt_tokens for _, one in replies]),
            completion_tokens=_sum([one.completion_tokens for _, one in replies]),
            cost=None if None in costs else round(sum(c for c in costs if c is not None), 8),
        )


def _sum(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)
