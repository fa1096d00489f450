"""One process of two: a step of SGD on half a batch, the weights sharded by torch's FSDP2, on gloo.

Usage: python -m torch.distributed.run --nproc_per_node 2 -m tests.train.sharded CHECKPOINT OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

RATE = 0.1


def step(model: Any, rows: Tensor) -> None:
    """One update."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    logits = model(rows).logits[:, :-1].flatten(0, 1)
    cross_entropy(logits, rows[:, 1:].flatten()).backward()
    optimiser.step()


def batch(vocabulary: int) -> Tensor:
    """Four rows."""
    return torch.randint(0, vocabulary, (4, 12), generator=torch.Generator().manual_seed(1))


def main(checkpoint: Path, out: Path) -> None:
    """Shard every layer and the rest, step, and write the whole weights from the first process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    held = sum(weight.to_local().numel() for weight in model.parameters())
    first = 2 * distributed.get_rank()
    step(model, batch(model.config.vocab_size)[first : first + 2])
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    if first == 0:
        torch.save(whole, out / "weights.pt")
        (out / "held.json").write_text(json.dumps(held))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
