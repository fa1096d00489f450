"""Rates are kept exactly, breakers open and close, retries have a budget."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from palio.judging.llm.pacing import Breaker, Pace, RetryBudget


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@given(
    st.integers(1, 20),
    st.floats(100, 2000),
    st.lists(st.tuples(st.floats(0, 30), st.floats(1, 1500)), max_size=60),
)
def test_no_minute_holds_more_than_agreed(
    requests: int, tokens: float, asks: list[tuple[float, float]]
) -> None:
    time = Time()
    pace = Pace(requests, tokens, time, time.sleep)
    made: list[tuple[float, float]] = []

    async def run() -> None:
        for gap, size in asks:
            time.now += gap
            await pace.take(size)
            made.append((time.now, size))

    asyncio.run(run())
    for start, _ in made:
        window = [size for at, size in made if start <= at < start + 60]
        assert len(window) <= requests
        assert sum(window) <= tokens or len(window) == 1


def test_what_was_really_used_makes_room() -> None:
    time = Time()
    pace = Pace(None, 1000, time, time.sleep)

    async def run() -> float:
        entry = await pace.take(900)
        pace.settle(entry, 100)
        await pace.take(800)
        return time.now

    assert asyncio.run(run()) == 0


def test_a_breaker_opens_lets_one_through_and_closes() -> None:
    time = Time()
    breaker = Breaker(time, failures=3, cooldown_s=10)
    for _ in range(3):
        assert breaker.wait() == 0
        breaker.enter()
        breaker.failure()
    assert breaker.wait() == 10
    time.now = 10
    assert breaker.wait() == 0
    breaker.enter()
    assert breaker.wait() > 0, "one probe at a time"
    breaker.failure()
    assert breaker.wait() == 10
    assert not breaker.hopeless
    time.now = 20
    breaker.enter()
    breaker.failure()
    assert breaker.hopeless
    time.now = 30
    breaker.enter()
    breaker.success()
    assert breaker.wait() == 0
    assert not breaker.hopeless


@given(st.integers(0, 200), st.floats(0, 2))
def test_retries_stay_in_their_budget(requests: int, ratio: float) -> None:
    budget = RetryBudget(ratio, free=10)
    for _ in range(requests):
        budget.request()
    allowed = sum(budget.allow() for _ in range(1000))
    assert allowed <= 10 + ratio * requests
    assert allowed >= min(1000, int(10 + ratio * requests))
