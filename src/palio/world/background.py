"""Coroutines from any thread run on one event loop in a thread of its own, until that is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE_S = 30
"""What has not ended this long after `close` is left behind."""


class BackgroundLoop:
    """Starts with the first coroutine; after `close` the next one starts it anew.

    Args:
        name: of the thread.
        end: closes on the loop what was opened there; by then nothing else runs on it.
    """

    def __init__(self, name: str, end: Callable[[], Awaitable[None]]) -> None:
        self._name, self._end = name, end
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name=self._name, daemon=True
                )
                self._thread.start()
            # within the lock: between `close` and its end a coroutine would never be run
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what runs, close what is open, end the thread."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut(), loop).result(_PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_S)
        loop.close()

    async def _shut(self) -> None:
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end()
        await asyncio.sleep(0)  # transports end in the next turn of the loop
