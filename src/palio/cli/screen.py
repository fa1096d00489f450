"""Progress of a long job on standard error: a bar for what runs, a line for what is done."""

from __future__ import annotations

from typing import Any


class Screen:
    """Draws one progress bar a stage on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, stage: str, total: int | None) -> None:
        """A new bar."""
        self._task = self._progress.add_task(stage, total=total, note="")

    def advance(self, done: int, note: str = "") -> None:
        """Move the current bar."""
        self._progress.update(self._task, completed=done, note=note)

    def end(self, stage: str, seconds: float, *, skipped: bool) -> None:
        """Replace the bar by a line that stays."""
        self._progress.remove_task(self._task)
        state = "was finished" if skipped else "done"
        self._progress.console.print(f"{stage:10} {state} in {seconds:.1f} s", highlight=False)
