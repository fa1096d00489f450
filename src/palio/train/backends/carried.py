"""What adapters learn is handed on beside 16-bit weights: inside them most of it is rounded away.

A checkpoint of such a stage has both. Its own weights have everything merged in and rounded once,
for whoever serves the folder. `unmerged` is one adapter over the weights that the run began with,
and holds what all stages learned: the next stage goes on from that, as the policy that was trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from palio.records import ConfigError, IntegrityError, Record, from_json, to_json
from palio.train.recipe import PretrainedModel

UNMERGED = "unmerged"
"""Folder of a checkpoint: an adapter as PEFT and vLLM load it, and `ORIGIN`."""
ORIGIN, ADAPTER = "origin.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
_STRIDE = 997

Model = TypeVar("Model", bound=nn.Module)


class Factors(NamedTuple):
    """An update of a matrix, in float32: `grow` (out, r) times `shrink` (r, in)."""

    shrink: Tensor
    grow: Tensor

    def delta(self, device: torch.device) -> Tensor:
        """(out, in), float32."""
        made: Tensor = self.grow.to(device) @ self.shrink.to(device)
        return made


Learned = Mapping[str, Factors]
"""Name of a linear layer in the plain model -> its update."""


class Origin(Record, frozen=True):
    """Which weights an update is to be added to.

    Attributes:
        base: folder of a checkpoint, as seen from the one that has the update; "": the recipe's.
        seed: of random ones.
        mark: digest of some of the numbers of each matrix that is updated.
    """

    base: str
    seed: int
    mark: str

    def place(self, checkpoint: Path) -> Path | None:
        """The folder of the base, None where the recipe names it."""
        return Path(os.path.normpath(checkpoint / self.base)) if self.base else None


class Past(NamedTuple):
    """What the stages before learned."""

    origin: Origin
    learned: Learned


class Carried(nn.Linear):
    """A linear layer of 16-bit weights, and beside them an update that they could not hold.

    The update is no parameter: nobody trains, saves, shards or pushes it.
    """

    past_in: Tensor
    past_out: Tensor

    @classmethod
    def of(cls, layer: nn.Linear, past: Factors) -> Carried:
        """With the very weights of `layer`."""
        shape = layer.in_features, layer.out_features
        made = cls(*shape, bias=layer.bias is not None, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        # weights that FSDP will broadcast are not there yet; an update each process has read itself
        device = torch.device("cpu") if layer.weight.is_meta else layer.weight.device
        made.register_buffer("past_in", past.shrink.to(device), persistent=False)
        made.register_buffer("past_out", past.grow.to(device), persistent=False)
        return made.train(layer.training)

    @property
    def past(self) -> Factors:
        """The update."""
        return Factors(self.past_in, self.past_out)

    def forward(self, x: Tensor) -> Tensor:
        """As PEFT adds an adapter's: in float32, rounded together with the layer's own product."""
        own = super().forward(x)
        low = functional.linear(x.to(self.past_in.dtype), self.past_in)
        return (own + functional.linear(low, self.past_out)).to(own.dtype)


def rounds(model: PretrainedModel) -> bool:
    """Whether an adapter's update would be rounded away if it were merged and nothing else kept."""
    return model.lora is not None and is_low(model.dtype)


def is_low(dtype: str) -> bool:
    """Whether numbers of a dtype, by its name in torch, have fewer than 32 bits."""
    return bool(getattr(torch, dtype).itemsize < 4)


def read_past(checkpoint: Path) -> Past | None:
    """What stands in a checkpoint's `unmerged`, None where it has none.

    Raises:
        IntegrityError: a half of an update is missing.
    """
    from safetensors.torch import load_file

    folder = checkpoint / UNMERGED
    if not (folder / ORIGIN).is_file():
        return None
    origin = from_json((folder / ORIGIN).read_bytes(), Origin, where=str(folder / ORIGIN))
    held = load_file(folder / ADAPTER)
    names = sorted(name.removesuffix(".lora_A.weight") for name in held if ".lora_A." in name)
    try:
        learned = {
            name.removeprefix(PREFIX): Factors(
                held[f"{name}.lora_A.weight"], held[f"{name}.lora_B.weight"]
            )
            for name in names
        }
    except KeyError as error:
        raise IntegrityError(
            f"an update has no {error}", where=str(folder), remedy="train the stage again"
        ) from error
    return Past(origin, learned)


def write_past(folder: Path, past: Past, model: PretrainedModel) -> None:
    """Write `unmerged` into a checkpoint's folder."""
    import peft
    from safetensors.torch import save_file

    assert model.lora is not None
    out = folder / UNMERGED
    out.mkdir(parents=True)
    rank = max(len(each.shrink) for each in past.learned.values())
    peft.LoraConfig(
        base_model_name_or_path=past.origin.base or model.path,
        r=rank,
        lora_alpha=rank,  # its quotient with r scales an update, and here nothing is left to scale
        target_modules=sorted(model.lora.targets),
        task_type="CAUSAL_LM",
        inference_mode=True,
    ).save_pretrained(str(out))
    halves: dict[str, Tensor] = {}
    for name, each in past.learned.items():
        halves[f"{PREFIX}{name}.lora_A.weight"] = each.shrink.cpu().contiguous()
        halves[f"{PREFIX}{name}.lora_B.weight"] = each.grow.cpu().contiguous()
    save_file(halves, out / ADAPTER, metadata={"format": "pt"})
    (out / ORIGIN).write_bytes(to_json(past.origin))


def carry(model: Model, learned: Learned) -> Model:
    """Give a plain model's layers their updates; the model itself is changed and returned."""
    for name, each in learned.items():
        layer: Any = model.get_submodule(name)
        model.set_submodule(name, Carried.of(layer, each))
    return model


def check_base(model: nn.Module, past: Past) -> None:
    """Hold the weights that an update is to be added to, to those that it was learned on.

    Raises:
        IntegrityError: they are others.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
        return  # where weights lie in shares, the first process alone has read them
    weights = {name: model.get_submodule(name).get_parameter("weight") for name in past.learned}
    if mark_of(weights) != past.origin.mark:
        raise IntegrityError(
            "the weights that the run began with are not those that its adapters were trained on",
            where=past.origin.base,
            remedy="bring the model's files back, or start the run again",
        )


def check_targets(model: nn.Module, targets: tuple[str, ...]) -> None:
    """Refuse adapters that cannot be handed on, before anything is trained.

    Raises:
        ConfigError: one is not on a plain linear layer, or is on the output head.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] not in targets:
            continue
        if not isinstance(layer, nn.Linear) or layer is head:
            raise ConfigError(
                f"an adapter on {name!r} over 16-bit weights cannot be handed on: it is not one "
                "of the model's inner linear layers",
                remedy='take it out of [model.lora] targets, or say dtype = "float32"',
            )


def mark_of(weights: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """Digest of every 997th number of each matrix, in `dtype`, by name."""
    found = sha256()
    for name in sorted(weights):
        some = weights[name].detach().flatten()[::_STRIDE].to(dtype or weights[name].dtype)
        found.update(name.encode() + some.float().cpu().numpy().tobytes())
    return f"sha256:{found.hexdigest()}"


def plain_name(name: str) -> str:
    """The name that a module or weight has without PEFT."""
    return name.removeprefix(PREFIX).replace(".base_layer", "")


def adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(plain name, layer) of each linear layer that PEFT has put an adapter on."""
    for name, layer in model.named_modules():
        if hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer"):
            yield plain_name(name), layer


@torch.no_grad()
def fresh(model: nn.Module) -> dict[str, Factors]:
    """What the adapter in training has learned, whatever its layers carry."""
    found = {}
    for name, layer in adapted(model):
        shrink = layer.lora_A["default"].weight.detach().float().clone()
        grow = layer.lora_B["default"].weight.detach().float() * layer.scaling["default"]
        found[name] = Factors(shrink, grow)
    return found


def carried(model: nn.Module) -> dict[str, Factors]:
    """What the layers of a model carry."""
    parts = model.named_modules()
    return {plain_name(name): part.past for name, part in parts if isinstance(part, Carried)}


def together(before: Learned, now: Learned) -> dict[str, Factors]:
    """Both updates as one; its rank is the sum of theirs.

    Raises:
        IntegrityError: they are of other layers.
    """
    if not before or not now:
        return dict(before or now)
    if before.keys() != now.keys():
        raise IntegrityError(
            "the adapters of this stage and of those before are not on the same layers",
            remedy="start the run again: [model.lora] targets have changed",
        )
    made = {}
    for name, each in now.items():
        old, device = before[name], each.shrink.device
        made[name] = Factors(
            torch.cat([old.shrink.to(device), each.shrink]),
            torch.cat([old.grow.to(device), each.grow], 1),
        )
    return made


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights without any update, by their plain names."""
    state: Mapping[str, Tensor] = model.state_dict()
    return {plain_name(name): value for name, value in state.items() if "lora_" not in name}
