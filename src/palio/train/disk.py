"""What is saved is whole or absent: a full disk is a clear error, and what was there stays."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from palio.records import IntegrityError, PalioError
from palio.world.artefacts import DISK_ERRORS

_RUST = re.compile(r"os error (\d+)")
_TORCH = re.compile(r"inline_container|PytorchStreamWriter|write\(\): fd \d+ failed")
"""torch.save says it in words only, a different one for each place that it may notice at."""


def refused(error: BaseException) -> bool:
    """Whether the disk did not take what was written: full, over a limit, broken, read-only."""
    if isinstance(error, OSError):
        return error.errno in DISK_ERRORS
    if isinstance(error, SafetensorError):
        found = _RUST.search(str(error))
        return found is not None and int(found[1]) in DISK_ERRORS
    return isinstance(error, RuntimeError) and _TORCH.search(str(error)) is not None


@contextmanager
def saving(what: str, place: Path, *, half: Path | None = None) -> Iterator[None]:
    """While open, a disk that takes no more is told as such; every other error passes.

    Args:
        what: is being saved, for the message.
        place: where, for the message.
        half: file or folder that is removed when it could not be finished: it fills the disk.

    Raises:
        PalioError: the disk is full or read-only, or a limit is reached.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if not refused(error):
            raise
        if half is not None:
            _drop(half)
        raise PalioError(
            f"{what} cannot be saved: {_reason(error)}",
            where=str(getattr(error, "filename", None) or place),
            remedy="make room on the disk and run the same again: the last state is kept",
        ) from error


def readable(state: Path) -> bool:
    """Whether no file of a trainer's state is cut off, as a crash of the machine can leave it."""
    try:
        for path in state.glob("*.safetensors"):
            with safe_open(path, framework="pt"):  # holds the length against the header
                pass
    except (OSError, SafetensorError):
        return False
    return all(is_zipfile(path) for path in state.glob("*.pt"))


def _drop(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    """What the system said: torch hides it behind a count of bytes."""
    told = error.__context__ if isinstance(error, RuntimeError) else error
    if isinstance(told, OSError) and told.strerror:
        return told.strerror
    return str(error).strip().split("\n")[0][:200]


def finite(model: nn.Module) -> bool:
    """Whether the weights in training are numbers; of sharded ones, this process's share."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return all(bool(torch.isfinite(_share(weight)).all()) for weight in trained)


def _share(weight: Any) -> torch.Tensor:
    """What this process holds of a weight: all of it, or its part by FSDP2 or DeepSpeed ZeRO-3."""
    if hasattr(weight, "to_local"):
        local: torch.Tensor = weight.to_local()
        return local
    if not hasattr(weight, "ds_tensor"):
        whole: torch.Tensor = weight
        return whole
    part: torch.Tensor = weight.ds_tensor.flatten()
    before = torch.distributed.get_rank(weight.ds_process_group) * part.numel()
    return part[: max(0, weight.ds_numel - before)]  # the rest is padding, whatever was there


class WholeStates:
    """First base of a trainer of transformers: its states are saved as `saving` has it.

    One that goes on from a state of its last update makes no further one: transformers would, where
    the last update is not the end of an epoch. Nor does one that a callback ends as it begins.

    What transformers writes last is `trainer_state.json`, so a state that a kill cut short is not
    taken for a whole one. Weights that are no numbers are not saved: with `logging_steps` above
    `save_steps` they would push the good states out before the loss is looked at.
    """

    def _run_epoch(self, **given: Any) -> None:
        state, control = self.state, self.control  # type: ignore[attr-defined]
        if control.should_training_stop or state.global_step >= state.max_steps:
            control.should_training_stop = True
        else:
            super()._run_epoch(**given)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        args, step = self.args, self.state.global_step  # type: ignore[attr-defined]
        if not finite(self.model):  # type: ignore[attr-defined]
            raise IntegrityError(
                f"weights are not numbers at step {step}",
                where=str(args.output_dir),
                remedy="lower the learning rate; the last saved state is still good",
            )
        half = Path(args.output_dir) / f"checkpoint-{step}"
        with saving(f"the state of step {step}", half, half=half):
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
