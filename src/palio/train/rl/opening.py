"""A checkpoint of the recipe's model, opened for training with rollouts."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from palio.records import ConfigError, InputError
from palio.train.backends.carried import rounds
from palio.train.backends.hub import CONFIG, commit_of, pinned
from palio.train.backends.job import adapter, save_adapter, save_whole
from palio.train.backends.merging import merged, rounding_counts
from palio.train.backends.weights import (
    PACKAGE,
    check_vocabulary,
    load_model,
    located,
    training_device,
    widened,
)
from palio.train.checkpoint import BUNDLED, check_whole, checkpoint_folder, seal
from palio.train.codec import Codec
from palio.train.context import Context
from palio.train.recipe import PretrainedModel
from palio.train.rl.policy import OwnPolicy, Policy, TransformersPolicy
from palio.train.serving import weights_digest
from palio.world.artefacts import file_digest


def open_policy(context: Context, checkpoint: Path | None, *, slots: int = 64) -> Policy:
    """The checkpoint of the stage before, as what the recipe says it is.

    Args:
        context: of the stage.
        checkpoint: None: a pretrained model's own weights.
        slots: conversations that our engine keeps ready, one for each rollout in flight.

    Raises:
        ConfigError: the recipe has no model.
        InputError: the checkpoint cannot be read, or there is none.
    """
    if context.recipe.model is not None:
        if checkpoint is None:
            raise InputError(
                f"stage {context.name!r} starts from a checkpoint",
                remedy="put an sft stage first",
            )
        return OwnPolicy(checkpoint, slots=slots, threads=context.threads)
    if context.recipe.pretrained is not None:
        codec = context.backend.codec(checkpoint, context)
        return pretrained_policy(context.recipe.pretrained, codec, checkpoint, context.seed)
    raise ConfigError("the recipe has no model")


def pretrained_policy(
    shape: PretrainedModel, codec: Codec, checkpoint: Path | None, seed: int
) -> Policy:
    """What the stage before had trained, under a fresh adapter where the recipe has one.

    On the device where the trainer will have it: rollouts may come before there is a trainer.
    """
    model: Any = widened(load_model(shape, checkpoint, seed), shape).to(training_device())
    own: Any = codec  # a PretrainedCodec
    check_vocabulary(own.tokenizer, model, str(checkpoint or shape.tokenizer or shape.path))
    if shape.lora is not None:
        import peft

        torch.manual_seed(seed)
        model = peft.get_peft_model(model, adapter(shape.lora))
    policy: TransformersPolicy

    def write(folder: Path, **manifest: Any) -> None:
        scratch = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(scratch, ignore_errors=True)
        if shape.lora is not None:
            save_adapter(model, scratch)
        whole = policy.copy()
        if rounds(shape):
            whole = merged(model, shape, checkpoint, seed, scratch, folder)
        save_whole(whole, own, scratch)
        manifest["counts"] = {**manifest["counts"], **rounding_counts(scratch)}
        seal(scratch, folder, **manifest)

    policy = TransformersPolicy(model, own.tokenizer, codec, write)
    return policy


def teacher_digests(name: str) -> dict[str, str]:
    """What a teacher of distillation is, for manifests, by `held.TEACHER`.

    Of a folder "teacher", the digest of its weights as a server tells it, and "teacher_config"; of
    one in a package "teacher_package" too, name and version; of a hub name that this machine's
    cache holds "teacher_revision", its commit. Of no name, nothing.

    Raises:
        MissingDependencyError: the package is not installed.
        IntegrityError: a file is not the one that the checkpoint's manifest lists.
    """
    if not name:
        return {}
    place = teacher_place(name)
    found = {"teacher_package": _package(name), "teacher_revision": commit_of(place)}
    folder = Path(place)
    if folder.is_dir():
        check_whole(folder)
        found["teacher"] = weights_digest(folder)
        if (folder / CONFIG).is_file():
            found["teacher_config"] = file_digest(folder / CONFIG)
    return {key: told for key, told in found.items() if told}


def teacher_place(name: str) -> str:
    """The checkpoint folder that a teacher's name means, or the hub name that it is."""
    place = located(name)
    named = place == BUNDLED or Path(place).is_dir()
    return str(checkpoint_folder(Path(place))) if named else place


def _package(name: str) -> str:
    """Name and version of the package that a name is in, as pip knows it."""
    if not name.startswith(PACKAGE):
        return ""
    package = name.removeprefix(PACKAGE).partition("/")[0]
    for known in (*metadata.packages_distributions().get(package, ()), package):
        with suppress(metadata.PackageNotFoundError):
            return f"{known} {metadata.version(known)}"
    return package


_SAME = "distillation compares distributions: name a teacher with the same vocabulary"


def open_teacher(name: str, policy: Policy) -> nn.Module:
    """A frozen model for distillation: what `teacher_digests` tells.

    Raises:
        InputError: there is no such model.
        ConfigError: its vocabulary is another one.
    """
    place = teacher_place(name)
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, **pinned(place)
        )
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise InputError(f"no teacher: {first}", where=name) from error
    theirs: Any = model.config
    mine = policy.model.config.vocab_size
    if theirs.vocab_size != mine:
        raise ConfigError(
            f"the teacher has {theirs.vocab_size} tokens, the student {mine}",
            where=name,
            remedy=_SAME,
        )
    _check_same_tokens(place, name, policy)
    return model.requires_grad_(False).eval()


def _check_same_tokens(place: str, name: str, policy: Policy) -> None:
    """Refuse a teacher whose ids mean other tokens; as many of them prove nothing.

    Where the teacher's place has no tokenizer there is nothing to compare. A token that only one of
    them has is no other meaning.
    """
    try:
        theirs = AutoTokenizer.from_pretrained(place, **pinned(place)).get_vocab()
    except (OSError, ValueError):
        return
    if 2 * len(theirs) < policy.model.config.vocab_size:
        return  # where there are no files, transformers makes one of a few special tokens up
    mine = {token: text for text, token in policy.tokenizer.get_vocab().items()}
    other = sorted(
        (token, text, mine[token])
        for text, token in theirs.items()
        if mine.get(token, text) != text
    )
    if other:
        token, text, own = other[0]
        raise ConfigError(
            f"{len(other)} ids mean other tokens to the teacher than to the student: {token} is "
            f"{text!r} to one and {own!r} to the other",
            where=name,
            remedy=_SAME,
        )
