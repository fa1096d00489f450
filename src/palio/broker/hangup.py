"""Who asked a model may hang up; what answers for it can look, and stop writing for nobody.

`Upstream.complete` is called from a thread of its own, and whoever called it waits elsewhere. A
server says here that its client has gone; a model of ours looks while it waits for its tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_GONE: ContextVar[threading.Event | None] = ContextVar("palio_client_gone", default=None)


@contextmanager
def asked_by(gone: threading.Event) -> Iterator[None]:
    """Calls in this thread are made for a client; `gone` is set when it hangs up."""
    before = _GONE.set(gone)
    try:
        yield
    finally:
        _GONE.reset(before)


def hung_up() -> bool:
    """Whether nobody waits any more for what this thread does."""
    gone = _GONE.get()
    return gone is not None and gone.is_set()
