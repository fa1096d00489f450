"""What Python code sees of clock and chance depends on the run's seed and on what it does, alone.

The wall clock is logical: it starts at one fixed instant and goes on by what the agent does, a
little for each look at it, by the length of each sleep and by a fixed charge for each request. So
the same agent with the same replies sees the same times, and loops that wait for a time still end.
Monotonic clocks stay real: time-outs need them. A native program, and Python code that goes out of
its way (`_datetime`, a file's mtime), still sees the machine's clock.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False  # importing typing costs 3 ms of every start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

EPOCH_NS = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z, the time at which every run starts."""
LOOK_NS = 1_000_000
"""What one look at the clock costs: two looks never show the same time."""


class Clock:
    """The run's wall clock, in nanoseconds."""

    def __init__(self) -> None:
        self.now_ns = EPOCH_NS

    def look(self) -> int:
        """The time, which then goes on by a little."""
        self.now_ns += LOOK_NS
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += max(0, int(seconds * 1e9))


CLOCK = Clock()
_REAL_SLEEP = time.sleep


def fix(seed: int) -> None:
    """Fix clock and chance in this interpreter; modules not imported yet are seen to on import."""
    _fix_time()
    _fix_chance(seed)
    sys.meta_path.insert(0, _Fixer())
    for name, mend in _MENDS.items():
        if name in sys.modules:
            mend(sys.modules[name])


def _fix_time() -> None:
    real_local, real_gm, real_strftime = time.localtime, time.gmtime, time.strftime
    real_asctime, real_get, real_get_ns = time.asctime, time.clock_gettime, time.clock_gettime_ns
    wall = {time.CLOCK_REALTIME, getattr(time, "CLOCK_TAI", -1)}

    def now() -> float:
        return CLOCK.look() / 1e9

    def sleep(seconds: Any, /) -> None:
        _REAL_SLEEP(seconds)
        CLOCK.advance(seconds)

    def localtime(seconds: Any = None, /) -> time.struct_time:
        return real_local(now() if seconds is None else seconds)

    def gmtime(seconds: Any = None, /) -> time.struct_time:
        return real_gm(now() if seconds is None else seconds)

    time.time = now
    time.time_ns = CLOCK.look
    time.sleep = sleep
    time.localtime = localtime
    time.gmtime = gmtime
    time.ctime = lambda seconds=None, /: real_asctime(localtime(seconds))
    time.asctime = lambda at=None, /: real_asctime(localtime() if at is None else at)
    time.strftime = lambda form, at=None, /: real_strftime(form, localtime() if at is None else at)
    time.clock_gettime = lambda clock, /: now() if clock in wall else real_get(clock)
    time.clock_gettime_ns = lambda clock, /: CLOCK.look() if clock in wall else real_get_ns(clock)


def _fix_chance(seed: int) -> None:
    """`os.urandom` and all that Python builds on it: secrets, uuid4, SystemRandom, tempfile."""
    import _random
    import os
    import posix

    stream = _random.Random(seed)

    def urandom(size: int, /) -> bytes:
        if size < 0:
            raise ValueError("negative argument not allowed")
        return stream.getrandbits(8 * size).to_bytes(size, "little") if size else b""

    def getrandom(size: int, flags: int = 0) -> bytes:
        del flags
        return urandom(size)

    _CHANCE.append((seed, urandom))
    modules: list[Any] = [os, posix]
    for module in modules:
        module.urandom = urandom
        module.getrandom = getrandom


_CHANCE: list[tuple[int, Any]] = []


def _mend_random(module: Any) -> None:
    """Unseeded generators draw from the run's seed; the module's own functions start from it."""
    seed, urandom = _CHANCE[-1]
    base = module.Random

    class Random(base):  # type: ignore[misc, valid-type]
        __doc__ = base.__doc__

        def __init__(self, x: Any = None) -> None:
            super().__init__(int.from_bytes(urandom(32), "little") if x is None else x)

        def seed(self, a: Any = None, version: int = 2) -> None:
            super().seed(int.from_bytes(urandom(32), "little") if a is None else a, version)

    Random.__qualname__ = "Random"
    Random.__module__ = "random"
    module.Random = Random
    module._inst.seed(seed)
    module.seed = lambda a=None, version=2: module._inst.seed(
        int.from_bytes(urandom(32), "little") if a is None else a, version
    )


def _mend_uuid(module: Any) -> None:
    """No address of this machine, and no clock of its own."""
    module._generate_time_safe = None
    module._UuidCreate = None
    module.getnode = lambda: 0x0200_0000_0001


def _mend_datetime(module: Any) -> None:
    real_date: Any = module.date
    real_datetime: Any = module.datetime

    stands_for: dict[type, type] = {}

    class Alike(type):
        """Real dates count as instances: C code makes them."""

        def __instancecheck__(cls, thing: Any) -> bool:
            real = stands_for.get(cls)
            return isinstance(thing, real) if real else type.__instancecheck__(cls, thing)

        def __subclasscheck__(cls, other: Any) -> bool:
            real = stands_for.get(cls)
            return issubclass(other, real) if real else type.__subclasscheck__(cls, other)

    class date(real_date, metaclass=Alike):  # type: ignore[misc] # noqa: N801 - stands in for datetime.date
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(time.time())

    class datetime(real_datetime, metaclass=Alike):  # type: ignore[misc] # noqa: N801
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(time.time(), module.timezone.utc).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(time.time())

    for made, real in ((date, real_date), (datetime, real_datetime)):
        stands_for[made] = real
        made.__module__ = "datetime"
        made.__qualname__ = real.__name__
        made.__doc__ = real.__doc__
    module.date = date
    module.datetime = datetime


_MENDS = {"random": _mend_random, "uuid": _mend_uuid, "datetime": _mend_datetime}


class _Fixer:
    """Finds the three modules as Python would, then fixes them once they are loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        mend = _MENDS.get(name)
        if mend is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = _mending(loader.exec_module, mend)
                return spec
        return None


def _mending(load: Any, mend: Any) -> Any:
    def exec_module(module: ModuleType) -> None:
        load(module)
        mend(module)

    return exec_module
