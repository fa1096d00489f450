"""Who asks waits for a slot, keeps it while answered, and hears of it when nobody answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, Protocol, TypeVar

from palio.broker.hangup import hung_up, seconds_left
from palio.records import FaultCode, UpstreamError


class Job(Protocol):
    """What somebody waits for, until `gone` is set."""

    done: Future[Any]
    gone: Event


J = TypeVar("J", bound=Job)
T = TypeVar("T")
_LOOK_S = 1.0
"""How often somebody who waits looks whether the worker is still there."""


class Slot(Generic[J]):
    """A row of a cache: the ids that it holds, and the job that uses it now.

    Attributes:
        used: step at which its last job ended.
    """

    def __init__(self, row: int) -> None:
        self.row = row
        self.ids: list[int] = []
        self.job: J | None = None
        self.used = 0


class Slots(Generic[J]):
    """The slots of a model and the jobs that wait for one; all but the inbox is one thread's own.

    Args:
        count: of the slots.
        inbox: where other threads put their jobs; None ends the work.

    Attributes:
        waiting: jobs without a slot, in the order in which they came.
        tick: steps so far.
    """

    def __init__(self, count: int, inbox: SimpleQueue[J | None]) -> None:
        self.all: list[Slot[J]] = [Slot(row) for row in range(count)]
        self.waiting: list[J] = []
        self.tick = 0
        self._inbox = inbox

    def free(self) -> list[Slot[J]]:
        """The slots that nobody uses."""
        return [slot for slot in self.all if slot.job is None]

    def release(self, slot: Slot[J]) -> None:
        """The slot's job is done; what was read for it stays until another needs the room."""
        slot.job, slot.used = None, self.tick

    def serve(
        self, who: str, read_in: Callable[[], None], step: Callable[[list[Slot[J]]], None]
    ) -> str:
        """Work until the inbox says None or something breaks; returns which.

        Args:
            who: the server, for the sentence that is returned.
            read_in: gives slots to waiting jobs.
            step: one more token for every slot with a job, which it is given.
        """
        try:
            while self._receive():
                self._forget()
                read_in()
                active = [slot for slot in self.all if slot.job is not None]
                if active:
                    self.tick += 1
                    step(active)
        except Exception as error:  # noqa: BLE001 - the callers must hear of it
            return f"the {who} broke: {type(error).__name__}: {error}"
        return f"the {who} was closed"

    def refuse(self, why: str) -> None:
        """Fail all jobs that are waiting or half done."""
        while not self._inbox.empty():
            job = self._inbox.get()
            self.waiting += [job] if job else []
        for job in [*self.waiting, *(slot.job for slot in self.all if slot.job)]:
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(broken(why))

    def _forget(self) -> None:
        """Let go of what nobody waits for: its slot is another's."""
        self.waiting = [job for job in self.waiting if not unwanted(job)]
        for slot in self.all:
            if slot.job is not None and unwanted(slot.job):
                self.release(slot)

    def _receive(self) -> bool:
        """Take new jobs; wait for one if there is nothing else to do. False: stop."""
        idle = not self.waiting and not any(slot.job for slot in self.all)
        while idle or not self._inbox.empty():
            job = self._inbox.get()
            if job is None:
                return False
            self.waiting.append(job)
            idle = False
        return True


def common(held: Sequence[int], ids: Sequence[int]) -> int:
    """How many leading ids agree; at least one is left to be read."""
    most = min(len(held), len(ids) - 1)
    if held[:most] == ids[:most]:
        return most
    return next(at for at in range(most) if held[at] != ids[at])


def unwanted(job: Job) -> bool:
    """Whether nobody waits for a job any more."""
    return job.gone.is_set() or job.done.cancelled()


def answered(done: Future[T], worker: Thread, who: str) -> T:
    """The result of a job, once it is there; a worker that ended without it is not waited for.

    A job may reach an inbox just after its worker has looked into it for the last time. One whose
    client has hung up, or whose run is over (`broker.hangup`), is cancelled; its worker sees that
    at the next step.

    Raises:
        UpstreamError: the worker is gone, the client is, or the run's time.
    """
    while True:
        try:
            return done.result(_patience())
        except TimeoutError:
            _look(done, worker, who)


class Listening:
    """The thread that waits for a job hears of its tokens.

    Args:
        hear: called in that thread after some more of them; False: it has had enough.
    """

    def __init__(self, hear: Callable[[], bool]) -> None:
        self._hear = hear
        self._news = Event()

    def told(self) -> None:
        """The worker's: there is a token more."""
        self._news.set()

    def until(self, done: Future[Any], worker: Thread, who: str) -> None:
        """Hear until the job is done or enough was heard; then it is cancelled.

        Raises:
            UpstreamError: see `answered`; who hangs up is noticed at the next token.
        """
        done.add_done_callback(lambda _: self._news.set())
        try:
            while not done.done():
                self._news.wait(_patience())
                self._news.clear()
                _look(done, worker, who)
                if not done.done() and not self._hear():
                    return
        finally:
            done.cancel()  # of no effect where it is done
        done.result()


def _look(done: Future[Any], worker: Thread, who: str) -> None:
    """Whether there is still somebody to wait for, and somebody who waits."""
    if hung_up() and done.cancel():
        raise broken("who asked has hung up") from None
    if seconds_left() == 0 and done.cancel():
        raise UpstreamError(
            f"the {who} had not answered when the run's time was over",
            code=FaultCode.upstream_timed_out,
            remedy="give runs more seconds, or completions fewer tokens",
        ) from None
    if not worker.is_alive() and not done.done():
        raise broken(f"the {who} is closed") from None


def _patience() -> float:
    """Seconds until the next look."""
    left = seconds_left()
    return _LOOK_S if left is None else min(_LOOK_S, left)


def tell(done: Future[T], result: T) -> None:
    """Give a job its result, unless nobody waits for it any more."""
    if done.set_running_or_notify_cancel():
        done.set_result(result)


def broken(what: str) -> UpstreamError:
    """The fault of a model of ours that does not answer."""
    return UpstreamError(what, code=FaultCode.upstream_server_error, remedy="start it again")
