"""Who asked a model may hang up, or have no time left; what answers looks, and stops for nobody.

`Upstream.complete` is called from a thread of its own, and whoever called it waits elsewhere. A
server says here that its client has gone, and a model of ours looks while it writes; a run says how
long it has, and a model server is asked no longer than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_GONE: ContextVar[threading.Event | None] = ContextVar("palio_client_gone", default=None)
_NEVER = threading.Event()
_LEFT: ContextVar[Callable[[], float] | None] = ContextVar("palio_seconds_left", default=None)


@contextmanager
def asked_by(gone: threading.Event) -> Iterator[None]:
    """Calls in this thread are made for a client; `gone` is set when it hangs up."""
    before = _GONE.set(gone)
    try:
        yield
    finally:
        _GONE.reset(before)


def client_gone() -> threading.Event:
    """Is set once nobody waits any more for what this thread does; never without a client."""
    return _GONE.get() or _NEVER


def hung_up() -> bool:
    """Whether nobody waits any more for what this thread does."""
    return client_gone().is_set()


@contextmanager
def asked_within(left: Callable[[], float]) -> Iterator[None]:
    """Calls in this thread are made for a run; `left` gives the seconds that it has still."""
    before = _LEFT.set(left)
    try:
        yield
    finally:
        _LEFT.reset(before)


def seconds_left() -> float | None:
    """How long what this thread does may take, in seconds from now; None: as long as it likes."""
    left = _LEFT.get()
    return None if left is None else max(0.0, left())
