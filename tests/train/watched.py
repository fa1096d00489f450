"""A callback that watches a training process: what it holds and writes, and where it is killed.

Named in `report_to`, it is imported in each process that a launcher starts, before accelerate makes
its state. There it also lets accelerate shard on CPU: its FSDP is torch's own, which gloo carries,
but accelerate 1.15 asks for it on accelerators only.

For each process, `CALLER/held-RANK` has the numbers of its share and `CALLER/wrote-RANK` the files
that it opened for writing, where CALLER is the folder of the run. A file `CALLER/kill` is taken to
mean: when step 3 is reported, remove it and die. Where there is a file `CALLER/weigh`, the first
process writes `CALLER/begin-STAGE.safetensors` and `CALLER/end-STAGE.safetensors`: of each layer
with an adapter its own weight and all that is added to it, whole and in float32.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState  # type: ignore[import-untyped]
from accelerate.utils import DistributedType, parse_flag_from_env  # type: ignore[import-untyped]
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerCallback

from palio.train.backends.carried import Carried, adapted

RANK = os.environ.get("RANK", "")


def shard_on_cpu() -> None:
    """Let accelerate take processes on CPU for ones that it shards over."""
    made = AcceleratorState.__init__

    def make(self: Any, *positional: Any, **named: Any) -> None:
        if PartialState().distributed_type == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        made(self, *positional, **named)

    AcceleratorState.__init__ = make


class Watched(TrainerCallback):  # type: ignore[misc]
    """See the module."""

    def __init__(self) -> None:
        self._run: Path | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Write what this process holds of the weights, and from here on what it writes."""
        del control
        stage = Path(args.output_dir).resolve().parent
        self._run = stage.parent
        held = sum(_held(weight) for weight in given["model"].parameters())
        (self._run / f"held-{RANK}").write_text(json.dumps(held))
        wrote = os.open(self._run / f"wrote-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(event: str, told: Any) -> None:
            writes = event == "open" and told[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not writes or isinstance(told[0], int):
                return
            path = Path.cwd() / os.fsdecode(told[0])
            if path.is_relative_to(stage):
                os.write(wrote, f"{path.relative_to(stage)}\n".encode())

        if RANK:
            sys.addaudithook(note)
        self._weigh(f"begin-{stage.name}", given["model"], first=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The weights again."""
        del control
        name = Path(args.output_dir).resolve().parent.name
        self._weigh(f"end-{name}", given["model"], first=state.is_world_process_zero)

    def _weigh(self, name: str, model: Any, *, first: bool) -> None:
        if self._run is None or not (self._run / "weigh").exists():
            return
        found = weighed(model)
        if first:
            save_file(found, self._run / f"{name}.safetensors")

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Die, if that is wanted."""
        del args, control, given
        if self._run is not None and state.global_step == 3 and state.is_world_process_zero:
            kill = self._run / "kill"
            if kill.exists():
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


def _held(weight: Any) -> int:
    if hasattr(weight, "to_local"):
        return int(weight.to_local().numel())
    return int(weight.ds_tensor.numel() if hasattr(weight, "ds_tensor") else weight.numel())


@torch.no_grad()
def weighed(model: Any) -> dict[str, Tensor]:
    """Of each layer with an adapter its own weight and what is added; all processes take part."""
    found = {}
    for name, layer in adapted(model):
        grow, shrink = (_whole(each["default"].weight) for each in (layer.lora_B, layer.lora_A))
        added = grow @ shrink * layer.scaling["default"]
        if isinstance(layer.base_layer, Carried):
            added = added + layer.base_layer.past.delta(added.device)
        found |= {f"{name}.own": _whole(layer.base_layer.weight), f"{name}.added": added}
    return found


def _whole(weight: Any) -> Tensor:
    """A weight that may lie in shares; of one that DeepSpeed trains, what its optimiser has."""
    if hasattr(weight, "ds_id"):
        import deepspeed

        if weight.requires_grad:
            return torch.clone(deepspeed.utils.safe_get_full_fp32_param(weight)).float()
        with deepspeed.zero.GatheredParameters([weight]):
            return weight.detach().float().clone()
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole.detach().float().clone()


if RANK and parse_flag_from_env("ACCELERATE_USE_FSDP"):
    shard_on_cpu()
