"""A checkpoint folder is complete or absent, and `transformers` and palio both load it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from palio import __version__
from palio.records import InputError, IntegrityError, Provenance, digest, to_json
from palio.train.disk import finite, saving
from palio.train.model import ModelConfig, Qwen3
from palio.train.tokenizer import ChatTokenizer
from palio.world.artefacts import file_digest, read_manifest

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
CHECKPOINT = "checkpoint"
"""Folder of a stage's checkpoint, inside the stage's folder."""
BUNDLED = "bundled"
"""Names the checkpoint that ships with palio, wherever a checkpoint folder may be named."""


class Checkpoint(NamedTuple):
    """A loaded checkpoint."""

    model: Qwen3
    tokenizer: ChatTokenizer


def save_checkpoint(
    folder: Path,
    model: Qwen3,
    tokenizer: ChatTokenizer,
    *,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    counts: Mapping[str, int],
    seed: int,
) -> Provenance:
    """Write a checkpoint; an older one of the same name is replaced only by a complete new one.

    Args:
        folder: where; its parent is made.
        model: the weights.
        tokenizer: its vocabulary.
        config: what produced it, echoed into the manifest.
        inputs: name -> digest of what it was trained on.
        counts: what it was trained on, in numbers.
        seed: of the training.

    Raises:
        PalioError: the disk is full; the older checkpoint is untouched.
        IntegrityError: the weights are no numbers, as the last update can leave them.
    """
    if not finite(model):
        raise IntegrityError(
            "the weights are not numbers: training diverged",
            where=str(folder),
            remedy="lower the learning rates in the recipe",
        )
    scratch = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    weights = {
        name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()
    }
    shape = model.config.to_transformers(pad=tokenizer.pad, end=tokenizer.end)
    generation = {"eos_token_id": tokenizer.end, "pad_token_id": tokenizer.pad}
    with saving("the checkpoint", folder, half=scratch):
        scratch.mkdir(parents=True)
        save_file(weights, scratch / WEIGHTS, metadata={"format": "pt"})
        (scratch / "config.json").write_text(json.dumps(shape, indent=1), "utf-8")
        (scratch / "generation_config.json").write_text(json.dumps(generation), "utf-8")
        tokenizer.save(scratch, longest=model.config.max_positions)
    return seal(scratch, folder, config=config, inputs=inputs, counts=counts, seed=seed)


def seal(
    scratch: Path,
    folder: Path,
    *,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    counts: Mapping[str, int],
    seed: int,
) -> Provenance:
    """Give a folder of weights its manifest and its final place; see `save_checkpoint`."""
    files = sorted(str(path.relative_to(scratch)) for path in scratch.rglob("*") if path.is_file())
    manifest = Provenance(
        kind="checkpoint",
        tool_version=__version__,
        config=dict(config),
        config_digest=digest(dict(config)),
        inputs=dict(inputs),
        outputs={name: file_digest(scratch / name) for name in files},
        counts=dict(counts),
        seed=seed,
    )
    with saving("the checkpoint", folder, half=scratch):
        (scratch / MANIFEST).write_bytes(to_json(manifest))
        for path in (*map(scratch.joinpath, files), scratch / MANIFEST):
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
        _replace(scratch, folder)
    return manifest


def _replace(scratch: Path, folder: Path) -> None:
    """Put the new folder in the old one's place; a crash leaves one of them complete."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def checkpoint_folder(named: Path) -> Path:
    """The checkpoint that a path names: itself, a stage's, a run's last one, or the bundled one.

    Raises:
        InputError: "bundled" was asked for and none ships with this build.
    """
    if named == Path(BUNDLED):
        found = Path(str(resources.files("palio.agents"))) / CHECKPOINT / "tiny"
        if not (found / WEIGHTS).is_file():
            raise InputError(
                "no checkpoint ships with this build",
                where=str(found),
                remedy="train one with `palio train demo`",
            )
        return found
    if (named / "config.json").is_file():
        return named
    chain = read_manifest(named / "chain.json")
    stages = chain.config.get("stages", []) if chain else []
    for folder in (named, *(named / str(stage["name"]) for stage in reversed(stages))):
        if (folder / CHECKPOINT / "config.json").is_file():
            return folder / CHECKPOINT
    return named


def checkpoint_name(named: Path) -> str:
    """What a checkpoint's model is called by everything that serves, races or evaluates it.

    The folder that was named, whether of a run, a stage or a checkpoint; one called "checkpoint" is
    called like its stage.
    """
    own = named.name or named.resolve().name
    return named.resolve().parent.name if own == CHECKPOINT else own


def check_whole(folder: Path) -> None:
    """Hold every file of a checkpoint to the manifest, where there is one.

    Raises:
        IntegrityError: a file is missing, or is not the one that the manifest lists.
    """
    manifest = read_manifest(folder / MANIFEST)
    for name, wanted in manifest.outputs.items() if manifest else ():
        path = folder / name
        if not path.is_file() or file_digest(path) != wanted:
            raise IntegrityError(
                "a file of a checkpoint is not the one that its manifest lists",
                where=str(path),
                remedy="train or copy the checkpoint again",
            )


def _remedy(folder: Path) -> str:
    """The folder of a run, named for one of its checkpoints, is a frequent slip."""
    inside = [path.parent for path in sorted(folder.glob(f"*/{WEIGHTS}"))]
    if inside:
        return f"a run folder holds several: name {' or '.join(map(str, inside))}"
    return "train one with palio train"


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint folder, or what `checkpoint_folder` makes of it.

    Raises:
        InputError: a file is missing, broken, or of another architecture, or the tokenizer has more
            entries than the model.
        IntegrityError: a file is not the one that the manifest lists.
    """
    folder = checkpoint_folder(folder)
    try:
        shape = json.loads((folder / "config.json").read_text("utf-8"))
        if shape.get("model_type") != "qwen3" or not shape.get("tie_word_embeddings"):
            kind = shape.get("model_type")
            raise InputError(
                f"the checkpoint has the architecture {kind!r}, not a tied qwen3",
                where=str(folder),
                remedy="serve it with another server and give its address",
            )
        model = Qwen3(ModelConfig.from_transformers(shape))
        for name in (WEIGHTS, "tokenizer.json"):
            (folder / name).stat()  # that one is missing is said before that it is another
        check_whole(folder)
        weights = load_file(folder / WEIGHTS)
        weights.pop("lm_head.weight", None)
        model.load_state_dict({name: value.to(torch.float32) for name, value in weights.items()})
    except _UNREADABLE as error:
        raise InputError(
            f"no readable checkpoint: {error}",
            where=str(folder),
            remedy=_remedy(folder),
        ) from error
    tokenizer = ChatTokenizer.load(folder)
    if tokenizer.size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.size} entries and the model {model.config.vocab_size}: "
            "it is another's",
            where=str(folder / "tokenizer.json"),
            remedy="copy the checkpoint again, tokenizer.json too",
        )
    return Checkpoint(model, tokenizer)


_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    SafetensorError,
    RuntimeError,
)
"""What a file that is missing, cut, or of another shape comes out as."""
