"""Any checkpoint answers chat completions: ours by our engine, others by transformers.

What answers can tell digests of what it was loaded from, so that results can be held to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from palio.broker.streaming import StreamingUpstream, Tell
from palio.broker.upstream import Upstream
from palio.records import InputError, IntegrityError, bytes_digest, digest
from palio.train.checkpoint import (
    MANIFEST,
    check_whole,
    checkpoint_folder,
    checkpoint_name,
)
from palio.train.engine import Engine
from palio.train.text import chat_template
from palio.train.tokenizer import PAD
from palio.world.artefacts import file_digest

KEPT = 8
"""Conversations with a pretrained model that are kept ready: 5,000 tokens of SmolLM2 are 115 MB."""

TEMPLATE = "chat_template.jinja"
"""File of a checkpoint; `transformers` writes it beside the tokenizer."""

_PARTS = {
    "weights": ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json"),
    "config": ("config.json", "generation_config.json"),
    "tokenizer": (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.*",
        "merges.txt",
        "*.model",
    ),
}
"""What decides an answer -> the files that hold it, in the layout of `transformers`."""


@runtime_checkable
class NamedUpstream(Upstream, StreamingUpstream, Protocol):
    """An upstream that streams, knows the names of its models, and can be closed."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names under which the model can be asked."""

    def close(self) -> None:
        """Answer nobody any more; those who wait fail."""


class ServedCheckpoint:
    """A checkpoint that answers, and says which one it is; thread-safe.

    Args:
        upstream: the loaded model.
        folder: that it was loaded from.
        files: of the folder as they were before it was loaded, from `_files`.
    """

    def __init__(self, upstream: NamedUpstream, folder: Path, files: dict[str, Any]) -> None:
        self._upstream, self._folder, self._files = upstream, folder, files
        self._identity: dict[str, str] = {}
        self._check()

    @property
    def models(self) -> tuple[str, ...]:
        """The names under which the model can be asked."""
        return self._upstream.models

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One OpenAI chat completion."""
        return self._upstream.complete(body)

    def stream(self, body: dict[str, Any], tell: Tell) -> None:
        """The same while it is written; see `StreamingUpstream`."""
        self._upstream.stream(body, tell)

    def close(self) -> None:
        """Answer nobody any more: at Ctrl-C nobody waits for rollouts that a model has begun."""
        self._upstream.close()

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return bool(getattr(self._upstream, "alive", True))

    @property
    def identity(self) -> dict[str, str]:
        """`checkpoint_digests` of what was loaded; made when it is first asked for.

        Raises:
            IntegrityError: the files have changed since then.
        """
        if not self._identity:
            found = checkpoint_digests(self._folder)
            self._check()
            self._identity = found
        return dict(self._identity)

    def _check(self) -> None:
        if _files(self._folder) != self._files:
            raise IntegrityError(
                "the checkpoint changed while it was in use, so nobody can say which one answers",
                where=str(self._folder),
                remedy="wait until its training is done, then run the same command again",
            )


@contextmanager
def open_checkpoint(
    named: Path, *, slots: int = 64, threads: int = 1, longest: int = 16_384
) -> Iterator[ServedCheckpoint]:
    """Serve a checkpoint while the context is open.

    Args:
        named: a checkpoint, a stage's or a run's folder, or "bundled".
        slots: conversations stepped together.
        threads: of the arithmetic.
        longest: tokens of a conversation with a pretrained model.

    Raises:
        InputError: no readable checkpoint, or a tokenizer that is another's.
        IntegrityError: a file is not the one that its manifest lists, or changed while it was read.
        ConfigError: it was trained with a chat template that cannot be rendered as it was.
    """
    folder = checkpoint_folder(named)
    files = _files(folder)
    own = is_own(folder)
    _check_numbers(folder)
    if own:
        with Engine(folder, slots=slots, threads=threads) as engine:
            engine.name = checkpoint_name(named)
            yield ServedCheckpoint(engine, folder, files)
        return
    import torch

    from palio.train.backends.codec import PretrainedCodec
    from palio.train.backends.served import Served
    from palio.train.backends.slots import sampler_of
    from palio.train.backends.weights import (
        check_vocabulary,
        load_model,
        load_tokenizer,
        sampled,
        widened,
    )
    from palio.train.recipe import PretrainedModel

    check_whole(folder)
    torch.set_num_threads(threads)
    source = PretrainedModel(path=str(folder), dtype=_dtype(folder))
    tokenizer = load_tokenizer(source, folder)
    trained = (folder / MANIFEST).is_file()
    codec = PretrainedCodec(tokenizer, (tokenizer.chat_template or "") if trained else "")
    with (
        sampled(widened(load_model(source, folder, 0), source)) as model,
        sampler_of(model, end=codec.end, slots=min(slots, KEPT)) as sampler,
    ):
        check_vocabulary(tokenizer, model, str(folder))
        places = getattr(model.config, "max_position_embeddings", None) or longest
        longest = min(
            longest, places
        )  # beyond what it was trained to place a model writes anything
        served = Served(sampler, codec, name=checkpoint_name(named), longest=longest)
        yield ServedCheckpoint(served, folder, files)


def _check_numbers(folder: Path) -> None:
    """Refuse weights that are no numbers: such a model writes, but what it writes is no answer."""
    from safetensors import SafetensorError, safe_open

    if not _matching(folder, _PARTS["weights"]):
        raise _no_weights(folder)
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as held:
                broken = (name for name in held.keys() if not _finite(held.get_tensor(name)))  # noqa: SIM118
                found = next(broken, "")
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"no readable weights: {error}",
                where=str(path),
                remedy="the file is cut off or no safetensors: copy or train it again",
            ) from error
        if found:
            raise InputError(
                f"the weights {found!r} hold values that are no numbers",
                where=str(path),
                remedy="its training diverged: use an earlier checkpoint, or train it again",
            )


def _finite(weights: Any) -> bool:
    return not weights.is_floating_point() or bool(weights.isfinite().all())


def checkpoint_digests(named: Path) -> dict[str, str]:
    """Digests of all that decides what a checkpoint answers, from the bytes of its files.

    Args:
        named: a checkpoint, a stage's or a run's folder, or "bundled".

    Returns:
        "weights" (of the one file, or of all by name), "config", "tokenizer" and "template": the
        chat template's text, which is ours where the folder has none.

    Raises:
        InputError: no checkpoint, or one without weights.
    """
    folder = checkpoint_folder(named)
    own = is_own(folder)
    found = {part: _digest(_matching(folder, globs)) for part, globs in _PARTS.items()}
    if not found["weights"]:
        raise _no_weights(folder)
    template = folder / TEMPLATE
    ours = chat_template() if own else chat_template("chat_template_tools.jinja")
    text = template.read_bytes() if template.is_file() else ours.encode()
    return {**found, "template": bytes_digest(text)}


def _no_weights(folder: Path) -> InputError:
    return InputError(
        "the checkpoint has no weights",
        where=str(folder),
        remedy="its files *.safetensors are missing: copy or train it again",
    )


def weights_digest(folder: Path) -> str:
    """The "weights" of `checkpoint_digests`; "" of a folder that has none."""
    return _digest(_matching(folder, _PARTS["weights"]))


def _matching(folder: Path, globs: Sequence[str]) -> list[Path]:
    return sorted({path for each in globs for path in folder.glob(each) if path.is_file()})


def _digest(files: Sequence[Path]) -> str:
    """The digest of a file, or of several by name; "" of none."""
    digests = {path.name: file_digest(path) for path in files}
    return digest(digests) if len(digests) > 1 else "".join(digests.values())


def _files(folder: Path) -> dict[str, tuple[int, ...]]:
    """Enough of every file that decides an answer to see that it was written or replaced."""
    globs = [each for part in _PARTS.values() for each in part]
    found = {path.name: path.stat() for path in _matching(folder, [*globs, TEMPLATE])}
    return {name: (at.st_ino, at.st_size, at.st_mtime_ns) for name, at in found.items()}


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
        ours = any(token.get("content") == PAD for token in added)
        kind = shape.get("model_type")
        template = folder / TEMPLATE
        # a model of ours that was trained on as a pretrained one reads what that one's writes
        alike = not template.is_file() or template.read_text("utf-8") == chat_template()
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"no readable checkpoint: {error}",
            where=str(folder),
            remedy="name a checkpoint folder of `palio train`",
        ) from error
    return ours and alike and kind == "qwen3"
