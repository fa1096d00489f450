"""The model that a stage trains, and how its current weights are sampled and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from palio.train.backends.carried import (
    PREFIX,
    Carried,
    carried,
    carry,
    fresh,
    own_weights,
    together,
)
from palio.train.backends.loop import ChatCodec
from palio.train.checkpoint import load_checkpoint, save_checkpoint
from palio.train.codec import Codec
from palio.train.engine import Engine
from palio.train.model import Qwen3
from palio.train.rl.completions import SAMPLER_KEY, CompletionsSampler
from palio.train.rl.sampler import EngineSampler, Sampler, TransformersSampler
from palio.train.rl.scoring import own_kernels
from palio.train.tokenizer import ChatTokenizer


class Policy(Protocol):
    """A model in training.

    Attributes:
        model: of `transformers`, perhaps with an adapter; trained in place.
        tokenizer: of `transformers`, for the trainer.
        codec: palio's, for conversations.
    """

    model: Any
    tokenizer: Any
    codec: Codec

    def sampler(self, trainer: Any) -> AbstractContextManager[Sampler]:
        """Samples with the current weights while the context is open, dropout off.

        Args:
            trainer: TRL's trainer, None outside of one.
        """

    def copy(self) -> nn.Module:
        """The weights as they stand now, frozen, as a model of its own."""

    def kernels(
        self, models: Sequence[nn.Module], *, temperature: float, low: bool, threads: int
    ) -> AbstractContextManager[None]:
        """While open, trainers score with faster kernels than transformers', where there are any.

        Args:
            models: this policy's model and copies of it, with TRL's fused head.
            temperature: logits are divided by it.
            low: products in bfloat16.
            threads: that may work at the same time.
        """

    def save(self, folder: Path, **manifest: Any) -> None:
        """Write a complete checkpoint; `checkpoint.save_checkpoint` lists the manifest's parts."""


class OwnPolicy:
    """A Qwen3 of ours: trained as transformers' Qwen3, sampled by our engine.

    Args:
        checkpoint: folder of a palio checkpoint.
        slots: conversations that the engine keeps ready.
        threads: engines that sample at the same time, each with one thread and its share of the
            slots: torch's own threads meet after every kernel, and these kernels are small.
    """

    def __init__(self, checkpoint: Path, *, slots: int = 64, threads: int = 1) -> None:
        loaded = load_checkpoint(checkpoint)
        self._config = loaded.model.config
        self._own: ChatTokenizer = loaded.tokenizer
        self._folder, self._slots, self._threads = checkpoint, slots, threads
        self.model: Any = read_model(checkpoint)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
        self.codec: Codec = ChatCodec(loaded.tokenizer)

    def own_model(self) -> Qwen3:
        """The current weights, adapter merged, in our own architecture."""
        model = Qwen3(self._config)
        weights = merged_weights(self.model)
        weights.pop("lm_head.weight", None)
        model.load_state_dict({name: value.float().cpu() for name, value in weights.items()})
        return model

    @contextmanager
    def sampler(self, trainer: Any) -> Iterator[Sampler]:
        """See `Policy`."""
        del trainer
        model, share = self.own_model(), -(-self._slots // self._threads)
        with ExitStack() as stack:
            made = [Engine.of(model, self._own, slots=share) for _ in range(self._threads)]
            yield EngineSampler(*(stack.enter_context(engine) for engine in made))

    def copy(self) -> nn.Module:
        """See `Policy`."""
        fresh: nn.Module = read_model(self._folder)
        weights = merged_weights(self.model)
        fresh.load_state_dict(weights)
        return fresh.requires_grad_(False).eval()

    def kernels(
        self, models: Sequence[nn.Module], *, temperature: float, low: bool, threads: int
    ) -> AbstractContextManager[None]:
        """See `Policy`; a model with an adapter keeps transformers' kernels."""
        if hasattr(self.model, "peft_config"):
            return nullcontext()
        return own_kernels(models, self._config, temperature=temperature, low=low, threads=threads)

    def save(self, folder: Path, **manifest: Any) -> None:
        """See `Policy`."""
        save_checkpoint(folder, self.own_model(), self._own, **manifest)


class ServedPolicy:
    """Any policy, sampled by a vLLM server: outside of a trainer with the weights that it holds.

    Args:
        inner: the policy that is trained.
        url: the server's address.
        model: its name there.
        key: bearer token, "" for none.
        on_key: what to do where the server refuses it, in words.
    """

    def __init__(
        self, inner: Policy, url: str, model: str, *, key: str = "", on_key: str = SAMPLER_KEY
    ) -> None:
        self._inner, self._url, self._model = inner, url, model
        self._key, self._on_key = key, on_key
        self.model, self.tokenizer, self.codec = inner.model, inner.tokenizer, inner.codec
        self.copy: Callable[[], nn.Module] = inner.copy
        self.kernels: Callable[..., AbstractContextManager[None]] = inner.kernels
        self.save: Callable[..., None] = inner.save

    @contextmanager
    def sampler(self, trainer: Any) -> Iterator[Sampler]:
        """See `Policy`; TRL has pushed the weights before it asks for rollouts (`use_vllm`)."""
        del trainer
        yield CompletionsSampler(self._url, self._model, key=self._key, on_key=self._on_key)


class TransformersPolicy:
    """Any causal language model, sampled in place.

    Args:
        model: of `transformers`, perhaps with an adapter.
        tokenizer: its own.
        codec: conversations to ids and back.
        write: saves weights to a folder with the manifest's parts.
    """

    def __init__(
        self, model: Any, tokenizer: Any, codec: Codec, write: Callable[..., None]
    ) -> None:
        self.model, self.tokenizer, self.codec, self.save = model, tokenizer, codec, write

    @contextmanager
    def sampler(self, trainer: Any) -> Iterator[Sampler]:
        """See `Policy`."""
        del trainer
        with TransformersSampler(self.model, end=self.codec.end) as sampler:
            yield sampler

    def kernels(
        self, models: Sequence[nn.Module], *, temperature: float, low: bool, threads: int
    ) -> AbstractContextManager[None]:
        """See `Policy`; there are none."""
        del models, temperature, low, threads
        return nullcontext()

    def copy(self) -> nn.Module:
        """See `Policy`."""
        dtype = next(self.model.parameters()).dtype
        made: nn.Module = AutoModelForCausalLM.from_config(self.model.config, dtype=dtype)
        if hasattr(self.model, "peft_config") and dtype.itemsize < 4:
            made.load_state_dict(own_weights(self.model))
            made = carry(made, together(carried(self.model), fresh(self.model)))
        else:
            made.load_state_dict(merged_weights(self.model))
        return made.requires_grad_(False).eval()


def read_model(folder: Path) -> Any:
    """A checkpoint of ours as transformers' Qwen3, fp32."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )


@torch.no_grad()
def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with its adapter's update added in; the model itself is not touched.

    Merging in place and back leaves rounding errors behind in each of thousands of steps. Of 16-bit
    weights those with an update come in float32, and what they carry is added in, too.
    """
    state: Mapping[str, Tensor] = model.state_dict()
    if not hasattr(model, "peft_config"):
        return {name: value.detach() for name, value in state.items()}
    updates: dict[str, Tensor] = {}
    for name, part in model.named_modules():
        if hasattr(part, "get_delta_weight") and hasattr(part, "base_layer"):
            deltas = [part.get_delta_weight(adapter) for adapter in part.active_adapters]
            total = torch.stack(list(deltas)).sum(0)
            if isinstance(part.base_layer, Carried):
                total = total + part.base_layer.past.delta(total.device)
            updates[f"{name}.base_layer.weight"] = total
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        if "lora_" in name:
            continue
        total = value.detach() + updates[name] if name in updates else value.detach()
        out[name.removeprefix(PREFIX).replace(".base_layer.", ".")] = total
    return out
