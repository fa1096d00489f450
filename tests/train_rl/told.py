"""An integration of somebody's own: it notes in a file what transformers' callbacks are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

NOTES = "told.jsonl"


class Notes(TrainerCallback):  # type: ignore[misc]
    """Leaves a line for each event, in the folder that reports go to."""

    def _note(self, args: Any, state: Any, event: str, **more: Any) -> None:
        if not state.is_world_process_zero:
            return
        row = {"event": event, "run": args.run_name, "step": state.global_step, **more}
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / NOTES).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        del control
        self._note(args, state, "begin", model=model.config.to_dict()["model_type"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        del control
        self._note(args, state, "log", logs=logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del control
        self._note(args, state, "end")


def read_notes(stage: Path) -> list[dict[str, Any]]:
    """The lines that a stage left, wherever in its folder."""
    (path,) = stage.rglob(NOTES)
    return [json.loads(line) for line in path.read_text().splitlines()]
