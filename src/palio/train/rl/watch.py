"""A policy that stops calling tools ends its stage: its reward may not show it."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

_LOW_STEPS = 2
"""Steps in a row with too few calls before a run is stopped; one step alone may be chance."""


class CallWatch(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Ends a run after two steps in a row with less than a share of the first one's calls.

    What it has seen is in the trainer's states, so that a run that is killed between the two steps
    ends where it would have. The step that decides is finished first, whatever parts its batch has:
    its update is made, logged, and in the weights, as its rollouts are in what was trained on.

    Args:
        share: of the first step's calls a rollout; 0: never.

    Attributes:
        first: calls a rollout of the first step; None: there was none yet.
        low: steps in a row with too few.
        stopped: why the run ends; "": it goes on.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.first: float | None = None
        self.low = 0
        self.stopped = ""

    def note(self, calls: float, step: int) -> None:
        """What the rollouts of a step show.

        Args:
            calls: of a rollout, in the mean.
            step: that they were made for.
        """
        if self.first is None:
            self.first = calls
        self.low = self.low + 1 if calls < self.share * self.first else 0
        if self.low >= _LOW_STEPS:
            self.stopped = (
                f"calls a rollout fell from {self.first:.2f} to {calls:.2f} at step {step}"
            )

    def state(self) -> dict[str, Any]:
        """What stands in a state of the trainer, in the form that transformers gives it."""
        seen = {"first": self.first, "low": self.low, "stopped": self.stopped}
        return {"args": {"share": self.share}, "attributes": seen}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Go on from what the state had seen; transformers itself restores callbacks by option."""
        found = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        for name, value in found["attributes"].items():
            setattr(self, name, value)
        self.on_step_end(args, state, control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Where it was decided, this update is the last one."""
        del args, state
        if self.stopped:
            control.should_training_stop = True
