"""A server is asked no faster than agreed, and one that fails is left alone for a while."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

WINDOW_S = 60.0
FAILURES = 5
"""Consecutive failures that open a breaker."""
COOLDOWN_S = 15.0
HOPELESS = 3
"""Trips without a success in between after which nobody waits for a server any more."""
FREE_RETRIES = 10
"""Retries that a small batch may always make."""


class Pace:
    """At most so many requests and tokens in any 60 seconds; exact, by a sliding window.

    Args:
        requests: a minute, None without limit.
        tokens: a minute, None without limit. A single request over it waits for an empty window.
        clock: seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self, requests: float | None, tokens: float | None, clock: Clock, sleep: Sleep
    ) -> None:
        self._requests, self._tokens = requests, tokens
        self._clock, self._sleep = clock, sleep
        self._spent: deque[list[float]] = deque()
        self._turn = asyncio.Lock()

    async def take(self, tokens: float) -> list[float]:
        """Wait for one's turn; the entry returned takes what was really used, by `settle`."""
        entry = [self._clock(), tokens]
        if self._requests is None and self._tokens is None:
            return entry
        async with self._turn:
            while (wait := self._wait(tokens)) > 0:
                await self._sleep(wait)
            entry[0] = self._clock()
            self._spent.append(entry)
            return entry

    def settle(self, entry: list[float], tokens: float) -> None:
        """Count what a request really used."""
        entry[1] = tokens

    def _wait(self, tokens: float) -> float:
        now = self._clock()
        while self._spent and self._spent[0][0] <= now - WINDOW_S:
            self._spent.popleft()
        if not self._spent:
            return 0.0
        full = self._requests is not None and len(self._spent) + 1 > self._requests
        heavy = self._tokens is not None and sum(e[1] for e in self._spent) + tokens > self._tokens
        # a hair more than exact, so that rounding cannot make it spin
        return self._spent[0][0] + WINDOW_S - now + 1e-6 if full or heavy else 0.0


class Breaker:
    """Opens after consecutive failures; after a while one request may try again.

    Args:
        clock: seconds.
        failures: consecutive ones that open it.
        cooldown_s: how long it stays open.
    """

    def __init__(
        self, clock: Clock, failures: int = FAILURES, cooldown_s: float = COOLDOWN_S
    ) -> None:
        self._clock, self._limit, self._cooldown = clock, failures, cooldown_s
        self._failed = 0
        self._until = 0.0
        self._probing = False
        self.trips = 0

    @property
    def hopeless(self) -> bool:
        """Whether it opened so often without a success that waiting for it is no use."""
        return self.trips >= HOPELESS

    def wait(self) -> float:
        """Seconds until it lets a request through; 0: now."""
        if self._failed < self._limit:
            return 0.0
        left = self._until - self._clock()
        if left > 0:
            return left
        return self._cooldown if self._probing else 0.0

    def enter(self) -> None:
        """A request goes through; from an open breaker it is the probe."""
        self._probing = self._failed >= self._limit

    def leave(self) -> None:
        """The request ended without telling anything about the server's health."""
        self._probing = False

    def success(self) -> None:
        """The server answered."""
        self._failed = self.trips = 0
        self._probing = False

    def failure(self) -> None:
        """The server failed."""
        was_probe, self._probing = self._probing, False
        self._failed += 1
        if self._failed == self._limit or was_probe:
            self._until = self._clock() + self._cooldown
            self.trips += 1


class RetryBudget:
    """Retries of a batch as a share of its requests, so that a storm is not made worse."""

    def __init__(self, ratio: float, free: int = FREE_RETRIES) -> None:
        self._ratio, self._free = ratio, free
        self.requests = self.retries = 0

    def request(self) -> None:
        """A first try is made."""
        self.requests += 1

    def allow(self) -> bool:
        """Whether one more retry may be made; counts it."""
        if self.retries + 1 > self._free + self._ratio * self.requests:
            return False
        self.retries += 1
        return True
