"""A recipe is a model, data, and an ordered list of stages, each with its digest."""

from __future__ import annotations

from typing import Any

import msgspec

from palio.records import ConfigError, Record, digest
from palio.train.stage import StageSettings

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""What weights may be, by torch's names."""


class PalioModel(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """A model of ours, from scratch; the defaults are the 1.8 M parameters of the tiny recipe.

    Attributes:
        vocabulary: entries of the tokenizer, at most.
        sample: conversations that vocabulary and documents are made from.
        lay_out: start with heads that can copy (`heads`); False: random weights.
        parts: parts of a batch, worked on at the same time where there are cores.
        start: checkpoint whose weights and vocabulary are taken instead, a folder or "bundled";
            then the shape above does not count, and any kind of stage may be the first.
    """

    vocabulary: int = 1024
    hidden_size: int = 192
    intermediate_size: int = 512
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 48
    rope_theta: float = 10_000.0
    max_positions: int = 4096
    sample: int = 3000
    lay_out: bool = True
    parts: int = 2
    start: str = ""

    def __post_init__(self) -> None:
        if self.kv_heads > 0 and self.heads % self.kv_heads:
            raise ConfigError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim = {self.head_dim}: places turn pairs, so it is even")


class LoraConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """A low-rank adapter (PEFT); the paper's rank and alpha are not known."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )


class Rehearsal(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """What a dry run puts in the place of the weights.

    Attributes:
        shape: fields of the model's configuration for random weights; {} takes the real weights.
        tokenizer: where the model's own is not at hand; a file of ranks will do.
        dtype: of the random weights.
    """

    shape: dict[str, Any] = {}
    tokenizer: str = ""
    dtype: str = "bfloat16"


class PretrainedModel(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """A model that `transformers` loads.

    Attributes:
        path: folder or hub name; ``package:NAME`` for a folder inside an installed package.
        revision: commit, branch or tag of a hub name; "" for what this machine's cache has of its
            main branch, or else the hub.
        gguf: file in `path` that is dequantised; "" for safetensors.
        tokenizer: another folder or name for the tokenizer; "" for the model's own.
        dtype: of the weights, a name of torch; with 16 bits what an adapter learns is handed on
            beside them (`backends.carried`), and all weights are trained by FSDP or DeepSpeed only.
        lora: adapter; None: all weights are trained.
        attention: implementation that transformers is asked for; "palio" is ours, for CPU cores.
        template: file of another chat template; "" for palio's own, "signatures" for the same with
            tools as one line each, not as JSON schemas, "qwen3" for Qwen3's own. A file must
            mark with `generation` what the assistant writes, write it as palio does, and never
            rewrite what was said before; rows, rollouts and the server then have its text.
        shape: configuration of random weights; only a dry run has any.
        rehearsal: what a dry run uses.
    """

    path: str
    revision: str = ""
    gguf: str = ""
    tokenizer: str = ""
    dtype: str = "float32"
    lora: LoraConfig | None = None
    attention: str = "sdpa"
    template: str = ""
    shape: dict[str, Any] = {}
    rehearsal: Rehearsal | None = None

    def __post_init__(self) -> None:
        named = (self.dtype, self.rehearsal.dtype) if self.rehearsal else (self.dtype,)
        unknown = [dtype for dtype in named if dtype not in DTYPES]
        if unknown:
            remedy = f"name one of {', '.join(DTYPES)}"
            raise ConfigError(f"weights cannot be of dtype {unknown[0]!r}", remedy=remedy)


class DataConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Which rows of the corpus are trained on.

    Attributes:
        longest: tokens; a longer row is left out and counted.
        rows_a_problem: rows of one problem, those with the most thinking first; 0: all. A model
            that must guess how much of its work to show learns less from the same tokens: trained
            on careful and terse rows it solved 62 % of the problems of a new catalogue, on one row
            a problem 87 % (n = 300, 4.1 M tokens each, one seed).
        reserve: share of the training problems, by leak cluster, whose rows no stage is shown;
            the student's own rollouts run these and no others. On problems that it was shown a
            student hardly fails: it solved 96 % of them, 90 % of the groups of eight were all
            right and taught nothing, where it solved 88 % of development problems (one run).
    """

    longest: int = 1000
    rows_a_problem: int = 0
    reserve: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.reserve < 1:
            raise ConfigError("reserve must be in [0, 1)")


LATER: dict[str, tuple[str, Any]] = {"data": ("reserve", 0.0), "pretrained": ("revision", "")}
"""Part of a recipe -> a setting that came when runs were published already, and its value before:
left out at that value, so that the recipe of an earlier run keeps its digest."""


class StageEntry(Record, frozen=True, omit_defaults=False):
    """One stage of a recipe.

    Attributes:
        kind: a name in `palio.train.stages.KINDS`.
        name: unique in the recipe; the stage's folder.
        settings: the kind's own settings record.
    """

    kind: str
    name: str
    settings: StageSettings


class Recipe(Record, frozen=True, omit_defaults=False):
    """All choices of a training run but its inputs.

    Attributes:
        name: of the recipe and of the model that it makes.
        seed: of weights, documents and order; each stage's own seed is added to it.
        model: exactly one of the two kinds of model.
        data: which rows of the corpus.
        stages: in order; each starts from the checkpoint of the one before.
        dry: each stage runs a step or two at a cut-down model: mechanics only, no result.

    Raises:
        ConfigError: `launch` is set where nothing is launched.
    """

    name: str
    stages: tuple[StageEntry, ...]
    model: PalioModel | None = None
    pretrained: PretrainedModel | None = None
    data: DataConfig = DataConfig()
    seed: int = 0
    dry: bool = False

    def __post_init__(self) -> None:
        for stage in self.stages:
            trl = getattr(stage.settings, "trl", None)
            if trl is None or not trl.launch:
                continue
            if self.pretrained is None:
                raise ConfigError(
                    f"stage {stage.name!r}: a model of palio's own is trained in one process, "
                    "not by `launch`",
                    where=self.name,
                    remedy="take `launch` out",
                )

    def prefix(self, count: int) -> dict[str, Any]:
        """All that decides the first `count` stages, as plain data; the recipe's name does not."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["name"]
        for part, (setting, unset) in LATER.items():
            if plain[part] is not None and plain[part][setting] == unset:
                del plain[part][setting]
        return {**plain, "stages": [plain_stage(stage) for stage in self.stages[:count]]}

    def digest(self) -> str:
        """Digest of the whole recipe."""
        return digest(self.prefix(len(self.stages)))

    def of_kind(self, kind: str) -> tuple[StageEntry, ...]:
        """The stages of one kind, in order."""
        return tuple(stage for stage in self.stages if stage.kind == kind)


def plain_stage(stage: StageEntry) -> dict[str, Any]:
    """A stage as plain data, all of its settings named."""
    settings: dict[str, Any] = msgspec.to_builtins(stage.settings)
    return {"kind": stage.kind, "name": stage.name, **settings}


def shortened(recipe: Recipe, minutes: float) -> Recipe:
    """The recipe with its time limits set so that all stages counted in tokens take `minutes`."""
    total = sum(tokens_of(stage) for stage in recipe.stages)
    stages = []
    for stage in recipe.stages:
        tokens = tokens_of(stage)
        if tokens and hasattr(stage.settings, "minutes"):
            share = minutes * tokens / total
            settings = msgspec.structs.replace(stage.settings, minutes=share)
            stage = msgspec.structs.replace(stage, settings=settings)
        stages.append(stage)
    return msgspec.structs.replace(recipe, stages=tuple(stages))


def tokens_of(stage: StageEntry) -> int:
    """Tokens that a stage trains on; 0 where it is counted otherwise."""
    return int(getattr(stage.settings, "tokens", 0))
