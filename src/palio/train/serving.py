"""Any checkpoint answers chat completions: ours by our engine, others by transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from palio.broker.upstream import Upstream
from palio.records import InputError
from palio.train.checkpoint import MANIFEST, checkpoint_folder, checkpoint_name
from palio.train.engine import Engine
from palio.train.text import chat_template
from palio.train.tokenizer import PAD

KEPT = 8
"""Conversations with a pretrained model that are kept ready: 5,000 tokens of SmolLM2 are 115 MB."""

TEMPLATE = "chat_template.jinja"
"""File of a checkpoint; `transformers` writes it beside the tokenizer."""


@runtime_checkable
class NamedUpstream(Upstream, Protocol):
    """An upstream that knows the names of its models."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names under which the model can be asked."""


@contextmanager
def open_checkpoint(
    named: Path, *, slots: int = 64, threads: int = 1, longest: int = 16_384
) -> Iterator[NamedUpstream]:
    """Serve a checkpoint while the context is open.

    Args:
        named: a checkpoint, a stage's or a run's folder, or "bundled".
        slots: conversations stepped together.
        threads: of the arithmetic.
        longest: tokens of a conversation with a pretrained model.

    Raises:
        InputError: no readable checkpoint.
        ConfigError: it was trained with a chat template that cannot be rendered as it was.
    """
    folder = checkpoint_folder(named)
    if is_own(folder):
        with Engine(folder, slots=slots, threads=threads) as engine:
            engine.name = checkpoint_name(named)
            yield engine
        return
    import torch

    from palio.train.backends.codec import PretrainedCodec
    from palio.train.backends.served import Served
    from palio.train.backends.slots import sampler_of
    from palio.train.backends.weights import load_model, load_tokenizer, sampled
    from palio.train.recipe import PretrainedModel

    torch.set_num_threads(threads)
    source = PretrainedModel(path=str(folder), dtype=_dtype(folder))
    tokenizer = load_tokenizer(source, folder)
    trained = (folder / MANIFEST).is_file()
    codec = PretrainedCodec(tokenizer, (tokenizer.chat_template or "") if trained else "")
    with (
        sampled(load_model(source, folder, 0)) as model,
        sampler_of(model, end=codec.end, slots=min(slots, KEPT)) as sampler,
    ):
        yield Served(sampler, codec, name=checkpoint_name(named), longest=longest)


def _dtype(folder: Path) -> str:
    """The dtype that a checkpoint was saved in: bfloat16 is read and written twice as fast."""
    shape = json.loads((folder / "config.json").read_bytes())
    named = str(shape.get("dtype") or shape.get("torch_dtype") or "float32")
    return named if named in ("bfloat16", "float32") else "float32"


def is_own(folder: Path) -> bool:
    """Whether a checkpoint has one of palio's own vocabularies and the chat text that goes with it.

    Raises:
        InputError: the folder is no checkpoint.
    """
    path = folder / "tokenizer.json"
    try:
        shape = json.loads((folder / "config.json").read_bytes())
        added = json.loads(path.read_bytes()).get("added_tokens", [])
    except (OSError, ValueError) as error:
        raise InputError(
            f"no readable checkpoint: {error}",
            where=str(folder),
            remedy="name a checkpoint folder of `palio train`",
        ) from error
    ours = any(token.get("content") == PAD for token in added)
    template = folder / TEMPLATE
    # a model of ours that was trained on as a pretrained one reads what that one's template writes
    alike = not template.is_file() or template.read_text("utf-8") == chat_template()
    return ours and alike and shape.get("model_type") == "qwen3"
