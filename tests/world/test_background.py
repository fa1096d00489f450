"""Coroutines of many threads share one loop, and closing it leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from palio.world.background import BackgroundLoop


class Opened:
    """What a loop's owner has open, and what ran on the loop when it was closed."""

    def __init__(self) -> None:
        self.loop = BackgroundLoop("palio-test", self._end)
        self.beside: list[int] = []

    async def _end(self) -> None:
        self.beside.append(len(asyncio.all_tasks()) - 1)


async def where() -> str:
    return threading.current_thread().name


def test_many_threads_share_one_loop_in_a_thread_of_its_own() -> None:
    opened = Opened()
    before = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: opened.loop.submit(where()).result(), range(40)))
    assert names == {"palio-test"}
    assert threading.active_count() == before + 1
    opened.loop.close()
    assert threading.active_count() == before


def test_what_is_in_flight_is_cancelled_before_its_owner_closes() -> None:
    opened = Opened()
    stuck = [opened.loop.submit(asyncio.sleep(60)) for _ in range(3)]
    opened.loop.submit(where()).result()
    opened.loop.close()
    for future in stuck:
        with pytest.raises(CancelledError):
            future.result(5)
    assert opened.beside == [0]


def test_an_idle_loop_has_no_thread_and_a_closed_one_starts_anew() -> None:
    opened, before = Opened(), threading.active_count()
    opened.loop.close()
    assert (threading.active_count(), opened.beside) == (before, [])
    for _ in range(2):
        assert opened.loop.submit(where()).result() == "palio-test"
        opened.loop.close()
        opened.loop.close()
    assert (threading.active_count(), opened.beside) == (before, [0, 0])


def test_an_error_comes_back_to_whoever_asked() -> None:
    async def wrong() -> None:
        raise ValueError("no")

    opened = Opened()
    with pytest.raises(ValueError, match="no"):
        opened.loop.submit(wrong()).result()
    assert opened.loop.submit(where()).result() == "palio-test"
    opened.loop.close()
