"""What a vLLM server gets of a policy in training is all that it learned, rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from palio.records import FaultCode, PalioError, UpstreamError
from palio.train.backends.carried import Carried, Factors, adapted, fresh, plain_name, together
from palio.train.rl.hooks import sharded


@contextmanager
def pushing(url: str) -> Iterator[None]:
    """TRL opens the way of the weights to the server as its trainer is made.

    Raises:
        UpstreamError: the server is not there, or was not started to receive weights.
    """
    try:
        yield
    except Exception as error:  # TRL's client raises bare ones
        if not url or isinstance(error, PalioError):
            raise
        raise UpstreamError(
            f"no weights can be pushed to the vLLM server: {type(error).__name__}: {error}"[:600],
            code=FaultCode.upstream_unreachable,
            where=url,
            remedy="start it as docs/rl.md says, with a GPU of its own; or leave `base_url` empty",
        ) from error


def push_whole(trainer: Any) -> None:
    """Let TRL push sums of weights and updates.

    TRL would merge the adapter into the weights in place and take it out again, which knows nothing
    of what they carry, and in 16 bits leaves weights behind that are not the ones before.

    Args:
        trainer: of TRL; of one without a server nothing is changed.
    """
    generation: Any = getattr(trainer, "vllm_generation", None)
    model = trainer.accelerator.unwrap_model(trainer.model)
    layers = dict(adapted(model))
    if generation is None or not layers:
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
