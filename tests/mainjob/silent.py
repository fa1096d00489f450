"""A reporter that drops all progress."""

from __future__ import annotations


class SilentReporter:
    """See `palio.evaluate.mainjob.stages.Reporter`."""

    def begin(self, stage: str, total: int | None) -> None:
        pass

    def advance(self, done: int, note: str = "") -> None:
        pass

    def end(self, stage: str, seconds: float, *, skipped: bool) -> None:
        pass
