"""What a vLLM server gets of a policy in training is all that it learned, rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from palio.records import (
    ConfigError,
    FaultCode,
    MissingDependencyError,
    PalioError,
    UpstreamError,
)
from palio.train.backends.carried import Carried, Factors, adapted, fresh, plain_name, together
from palio.train.rl.hooks import sharded

_PACKAGES = ("vllm", "requests")
"""What TRL's client of a vLLM server imports."""


def check_server(url: str, *, launched: bool) -> None:
    """Refuse a server that weights could never be pushed to, whatever runs there.

    Args:
        url: its address.
        launched: whether the training processes are a launcher's, perhaps on other machines.

    Raises:
        ConfigError: the address is none of a server's root.
        MissingDependencyError: what sends the weights is not installed, or sees no GPU.
    """
    if urlsplit(url).path.strip("/"):
        raise ConfigError(
            "`base_url` of grpo is the server's root: TRL adds /v1 and other paths itself",
            where=url,
            remedy="take the path out, as in http://127.0.0.1:8000",
        )
    check_installed()
    if not launched and not torch.cuda.is_available():
        raise MissingDependencyError(
            "weights go to the server at `base_url` by NCCL, and no GPU is seen here",
            remedy="run it where there is one, or leave `base_url` empty: the model itself samples",
        )


def check_installed() -> None:
    """Refuse to push weights without the packages whose code does it.

    Raises:
        MissingDependencyError: one is not installed.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            "`base_url` of grpo needs vLLM in this process too: its code sends the weights, and "
            f"there is no package {missing[0]!r}",
            remedy="pip install 'trl[vllm]', or leave `base_url` empty: the model itself samples",
        )


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
