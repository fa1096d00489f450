"""What a vLLM server gets of a policy in training is all that it learned, rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from palio.train.backends.carried import Carried, Factors, adapted, fresh, plain_name, together
from palio.train.rl.hooks import sharded


def push_whole(trainer: Any) -> None:
    """Let TRL push sums of weights and updates.

    TRL would merge the adapter into the weights in place and take it out again, which knows nothing
    of what they carry, and in 16 bits leaves weights behind that are not the ones before.

    Args:
        trainer: of TRL, with a server.
    """
    generation, model = trainer.vllm_generation, trainer.accelerator.unwrap_model(trainer.model)
    layers = dict(adapted(model))
    if not layers:
        return
    given = generation._iter_named_params

    def whole() -> Iterator[tuple[str, Tensor]]:
        if sharded(trainer):  # then TRL gathers, merges, and has no update of earlier stages
            for name, weight in given():
                yield name, _added(weight, _past(layers.get(name.removesuffix(".weight"))))
            return
        now = fresh(model)
        for name, weight in model.named_parameters():
            plain = plain_name(name)
            if model.prefix in name or "original_module" in name:
                continue
            of = plain.removesuffix(".weight")
            learned = now.get(of) if plain.endswith(".weight") else None
            past = _past(layers.get(of))
            if learned is not None and past is not None:
                learned = together({of: past}, {of: learned})[of]
            yield generation._fix_param_name_to_vllm(plain), _added(weight.data, learned)

    generation._iter_named_params = whole


def _past(layer: Any) -> Factors | None:
    held = getattr(layer, "base_layer", None)
    return held.past if isinstance(held, Carried) else None


def _added(weight: Tensor, update: Factors | None) -> Tensor:
    if update is None:
        return weight
    return (weight.float() + update.delta(weight.device)).to(weight.dtype)
