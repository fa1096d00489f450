"""Freed memory goes back to the system."""

import subprocess
import sys
import weakref

import pytest

from palio.train import memory

# 64 threads that free what they held: their arenas keep it
HOARD = """
import threading
import psutil
from palio.train.memory import give_back

resident = lambda: psutil.Process().memory_info().rss >> 20
give_back()
before = resident()

def hold(kept, last):
    each = [bytes(20_000) for _ in range(400)]
    kept.append(each.pop())     # the top of the arena stays in use, what lies below is free
    last.wait()

kept, together = [], threading.Barrier(64)
threads = [threading.Thread(target=hold, args=(kept, together)) for _ in range(64)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
hoarded = resident()
give_back()
print(before, hoarded, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's arenas")
def test_what_threads_have_freed_goes_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOARD], capture_output=True, text=True, check=True, timeout=120
    )
    before, hoarded, after = map(int, done.stdout.split())
    assert hoarded - before > 200, "64 times 8 MB were freed and kept"
    assert after - before < (hoarded - before) / 2


def test_cycles_are_collected_where_the_c_library_has_no_such_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Loop:
        def __init__(self) -> None:
            self.me = self

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    gone = weakref.ref(Loop())
    memory.give_back()
    assert gone() is None
