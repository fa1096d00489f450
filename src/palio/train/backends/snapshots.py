"""Checkpoints without a finished stage: a recipe's beginning, and the state of one in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec

from palio.records import ConfigError, InputError
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.job import FILE, SAVED, newest_state, read_job, save_whole
from palio.train.backends.merging import merged
from palio.train.backends.weights import load_model, load_tokenizer
from palio.train.checkpoint import seal
from palio.train.recipe import Recipe
from palio.train.stage import TRAINER


def write_start(recipe: Recipe, out: Path) -> Path:
    """The model that a recipe starts from, as a checkpoint: what its training is compared with.

    Raises:
        ConfigError: the recipe's model is made from scratch, or `out` has something in it.
    """
    if recipe.pretrained is None:
        raise ConfigError("the recipe starts from random weights", where=recipe.name)
    _check_empty(out)
    codec = PretrainedCodec(
        load_tokenizer(recipe.pretrained, None), template_text(recipe.pretrained.template)
    )
    scratch = _scratch(out)
    save_whole(load_model(recipe.pretrained, None, recipe.seed), codec, scratch)
    inputs = {"template": codec.template_digest}
    seal(scratch, out, config=recipe.prefix(0), inputs=inputs, counts={}, seed=recipe.seed)
    return out


def write_state(stage: Path, out: Path) -> Path:
    """The newest saved state of a stage in training, as a checkpoint; the stage can still go on.

    Args:
        stage: folder of the stage.
        out: checkpoint folder to write, empty or new.

    Raises:
        InputError: no pretrained model is in training there, or it has saved no state yet.
        ConfigError: `out` has something in it.
    """
    if not (stage / FILE).is_file():
        raise InputError("no pretrained model is in training", where=str(stage))
    job = read_job(stage)
    state = newest_state(stage / TRAINER)
    if state is None:
        raise InputError(
            "the stage has saved no state",
            where=str(stage / TRAINER),
            remedy="a finished stage has its checkpoint; another saves one every `save_steps`",
        )
    _check_empty(out)
    start = Path(job.start) if job.start else None
    codec = PretrainedCodec(load_tokenizer(job.model, start), template_text(job.model.template))
    scratch = _scratch(out)
    if job.model.lora is not None:
        import peft

        whole = load_model(job.model, start, job.seed)
        trained = peft.PeftModel.from_pretrained(whole, state)
        model = merged(trained, job.model, start, job.seed, scratch, out)
    else:
        model = load_model(job.model, Path(state), job.seed)
    save_whole(model, codec, scratch)
    step = int(json.loads((Path(state) / "trainer_state.json").read_bytes())["global_step"])
    seal(
        scratch,
        out,
        config=msgspec.to_builtins(job),
        inputs={"template": codec.template_digest},
        counts={"steps": step, "of": job.settings.max_steps},
        seed=job.seed,
    )
    return out


def _check_empty(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        raise ConfigError("the folder is not empty", where=str(out), remedy="name a new one")


def _scratch(out: Path) -> Path:
    scratch = out.with_name(f".{out.name}.{SAVED}")
    shutil.rmtree(scratch, ignore_errors=True)
    return scratch
