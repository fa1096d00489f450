"""Jobs get a slot in turn, and none waits for ever when the server ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palio.records import UpstreamError
from palio.train.admission import Slot, Slots, answered, common


class Count:
    """A job that is done after so many steps; 0: never."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.done: Future[int] = Future()
        self.gone = threading.Event()


class Counter:
    """Serves counts from two slots; step number `breaks` fails."""

    def __init__(self, breaks: int = 0) -> None:
        self.inbox: SimpleQueue[Count | None] = SimpleQueue()
        self.slots = Slots(2, self.inbox)
        self.breaks, self.busy = breaks, threading.Event()

    def read_in(self) -> None:
        for slot in self.slots.free()[: len(self.slots.waiting)]:
            slot.job = self.slots.waiting.pop(0)

    def step(self, active: list[Slot[Count]]) -> None:
        if self.slots.tick == self.breaks:
            raise RuntimeError("no memory")
        for slot in active:
            assert slot.job is not None
            slot.job.left -= 1
            if not slot.job.left:
                slot.job.done.set_result(self.slots.tick)
                self.slots.release(slot)
        self.busy.set()

    def work(self) -> None:
        self.slots.refuse(self.slots.serve("counter", self.read_in, self.step))

    @contextmanager
    def working(self, jobs: Sequence[Count]) -> Iterator[None]:
        for job in jobs:
            self.inbox.put(job)
        worker = threading.Thread(target=self.work)
        worker.start()
        try:
            yield
        finally:
            self.inbox.put(None)
            worker.join(10)


def test_waiting_jobs_get_the_slots_that_come_free_in_turn() -> None:
    counter, jobs = Counter(), [Count(3), Count(1), Count(1), Count(2)]
    with counter.working(jobs):
        assert [job.done.result(10) for job in jobs] == [3, 1, 2, 4]
    assert [(slot.job, slot.used) for slot in counter.slots.all] == [(None, 3), (None, 4)]


def test_all_hear_of_it_when_the_server_closes_at_work() -> None:
    counter, jobs = Counter(), [Count(0), Count(0), Count(1)]
    with counter.working(jobs):
        assert counter.busy.wait(10)
        assert not any(job.done.done() for job in jobs)
    for job in jobs:
        with pytest.raises(UpstreamError, match="the counter was closed"):
            job.done.result(0)


def test_all_hear_why_a_server_broke() -> None:
    counter, jobs = Counter(breaks=2), [Count(1), Count(2), Count(2), Count(1)]
    with counter.working(jobs):
        assert jobs[0].done.result(10) == 1
        faults = [job.done.exception(10) for job in jobs[1:]]
    assert all("the counter broke: RuntimeError: no memory" in str(fault) for fault in faults)
    assert len({id(fault) for fault in faults}) == 3, "an exception is raised in one thread only"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2), min_size=1))
def test_what_is_shared_is_the_longest_prefix_that_leaves_a_token_to_read(
    held: list[int], ids: list[int]
) -> None:
    found = common(held, ids)
    assert held[:found] == ids[:found]
    assert found < len(ids)
    longer = found + 1
    assert longer > min(len(held), len(ids) - 1) or held[:longer] != ids[:longer]


def test_a_job_whose_worker_is_gone_is_not_waited_for() -> None:
    done: Future[int] = Future()
    worker = Thread(target=sleep, args=(0.2,))
    worker.start()
    with pytest.raises(UpstreamError, match="the engine is closed"):
        answered(done, worker, "engine")


def test_what_a_worker_wrote_before_it_ended_is_had() -> None:
    done: Future[int] = Future()
    worker = Thread(target=done.set_result, args=(7,))
    worker.start()
    worker.join()
    assert answered(done, worker, "engine") == 7
