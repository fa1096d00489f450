"""Weights that processes hold in shares (FSDP, DeepSpeed) are one whole model in the first of them.

In shares nothing can be merged, copied or looked at by one process alone: each look at a weight
waits for the others. So the whole state is gathered by all, once, and given to a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palio.records import ConfigError, IntegrityError
from palio.train.backends.carried import plain_name

_OPTIMISED = ("ds_id", "_hp_mapping")
"""By these DeepSpeed's own look-up tells a weight of ZeRO-3, and one of its other optimisers."""


def apart(trainer: Any) -> bool:
    """Whether FSDP or DeepSpeed has the weights of a trainer of transformers."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def check_apart() -> None:
    """When training begins: refuse copies of the model where shares of it were asked for.

    accelerate 1.15 takes FSDP on accelerators only; on CPU it says nothing.

    Raises:
        ConfigError: the launcher said FSDP, and each process would hold all weights.
    """
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
    from accelerate.utils import parse_flag_from_env  # type: ignore[import-untyped]

    if not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return
    state = AcceleratorState()
    if getattr(state, "fsdp_plugin", None) is None:
        raise ConfigError(
            f"the launcher says FSDP, and accelerate shards nothing on {state.device.type!r}",
            remedy="launch on several GPUs, or without FSDP",
        )


def whole_model(trainer: Any, dtype: str) -> Any | None:
    """The trained model with all of its weights, its adapter still on it.

    In each process of the trainer.

    Args:
        trainer: of transformers, which has trained.
        dtype: of weights that were apart, but for the adapter's.

    Returns:
        The model in the first process, None in the others.

    Raises:
        IntegrityError: what was gathered is not the model's.
    """
    trained = trainer.accelerator.unwrap_model(trainer.model)
    state = _gathered(trainer, trained) if apart(trainer) else None
    trainer.accelerator.wait_for_everyone()
    if not trainer.is_world_process_zero():
        return None
    return trained if state is None else rebuilt(trained, state, getattr(torch, dtype))


def _gathered(trainer: Any, trained: Any) -> dict[str, Tensor]:
    """Name -> whole weight, in the first process; all of them take part.

    FSDP gives float32. DeepSpeed gives what it computes in, perhaps 16 bits, and keeps float32 of
    what it trains for its optimiser: that is what was learned.
    """
    state = dict(trainer.accelerator.get_state_dict(trainer.model_wrapped) or {})
    for name, weight in trained.named_parameters():
        if weight.requires_grad and any(hasattr(weight, mark) for mark in _OPTIMISED):
            from deepspeed.utils import safe_get_full_fp32_param  # type: ignore[import-not-found]

            whole = safe_get_full_fp32_param(weight)  # by all processes, one weight at a time
            if whole is not None and trainer.is_world_process_zero():
                state[name] = whole.detach().to("cpu", torch.float32)
    return state


def as_they_were(model: Any, began: Mapping[str, Tensor]) -> Any:
    """The model with its frozen weights, those under an adapter, as they were read.

    What DeepSpeed does not train it has in 16 bits alone, where it computes in 16 bits.

    Args:
        model: under PEFT; changed and returned.
        began: plain name -> weight when the stage began.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" not in name:
                weight.copy_(began[plain_name(name)])
    return model


def rebuilt(trained: Any, state: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    """A plain model of the same configuration and adapter, with `state` as its weights.

    Args:
        trained: of transformers, perhaps under PEFT; only its configuration is looked at.
        state: name -> whole weight; those of other adapters than "default" are left out.
        dtype: of the weights; an adapter's stay as they were trained.

    Raises:
        IntegrityError: a weight of the model is not in `state`.
    """
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # from here on models are made whole again
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(trained.config, dtype=dtype)
        if hasattr(trained, "peft_config"):
            import peft

            model = peft.get_peft_model(model, trained.peft_config["default"])
    held = {
        name: value.to("cpu", None if "lora_" in name else dtype)
        for name, value in state.items()
        if value.numel()
    }
    lacking = model.load_state_dict(held, strict=False, assign=True).missing_keys
    _plain(model).tie_weights()
    left = sorted(name for name in lacking if model.get_parameter(name).is_meta)
    if left:
        raise IntegrityError(
            f"{len(left)} weights were not gathered from the processes, {left[0]!r} first",
            remedy="DeepSpeed: stage3_gather_16bit_weights_on_model_save; the last state is good",
        )
    return model


def _plain(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "peft_config") else model
