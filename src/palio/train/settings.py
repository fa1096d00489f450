"""Settings that several kinds of stage share: how weights are trained, how problems are run."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from palio.broker.upstream import checked_url
from palio.records import ConfigError, MissingDependencyError, Profile, Record
from palio.train.loop import StageConfig
from palio.train.optimiser import OptimiserConfig
from palio.train.owned import check_extra
from palio.train.stage import Endpoint, StageSettings

SHIPPED = {"fsdp": "fsdp.yaml", "zero3": "zero3.json"}
"""Configurations for launchers beside the bundled recipes; a digest has the name, not the place."""


def shipped(name: str) -> str:
    """The path of a file in `SHIPPED` by its name there; any other name as it is."""
    if name not in SHIPPED:
        return name
    return str(resources.files(__package__).joinpath("recipes", SHIPPED[name]))


class TrlSettings(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """What TRL and transformers are told; the names are theirs.

    Attributes:
        bf16, gradient_checkpointing: off by default: TRL's own defaults are for GPUs.
        max_steps: updates; -1: `num_train_epochs` decides.
        report_to: integrations of transformers, e.g. ["tensorboard", "wandb"], or "module:Class" of
            a callback (`reporting`); with our own loop, too. `metrics.jsonl` is always written.
        save_steps: updates between two checkpoints that a killed run goes on from.
        deepspeed: its configuration file, or "zero3" for the one that ships (`shipped`); "" for
            none. FSDP is chosen by `launch`.
        packing: several rows in one; slow on CPU (535 against 2,600 tokens/s, measured).
        launch: command that starts the training processes, e.g. ["accelerate", "launch",
            "--config_file", "fsdp"], where "fsdp" is the file that ships; () trains in this one.
        extra: any other field of TRL's configuration class.
    """

    num_train_epochs: float = 1.0
    max_steps: int = -1
    learning_rate: float = 1e-4
    lr_scheduler_type: str = "cosine"
    warmup_ratio: float = 0.03
    per_device_train_batch_size: int = 1
    gradient_accumulation_steps: int = 8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    bf16: bool = False
    gradient_checkpointing: bool = False
    use_liger_kernel: bool = False
    packing: bool = False
    logging_steps: int = 1
    save_steps: int = 25
    report_to: str | tuple[str, ...] = ()
    deepspeed: str = ""
    launch: tuple[str, ...] = ()
    extra: dict[str, str | int | float | bool] = {}

    def check_extra(self, kind: str) -> None:
        """`extra` names nothing that is decided already by a stage of this kind (`owned`).

        Raises:
            ConfigError: it does.
        """
        check_extra(self.extra, kind, self.__struct_fields__)


def check_deepspeed(trl: TrlSettings, stage: str) -> None:
    """What `deepspeed` of a stage needs is there.

    Raises:
        ConfigError: no processes are launched, which is what DeepSpeed shares the weights out over.
        MissingDependencyError: DeepSpeed is not installed.
    """
    if not trl.deepspeed:
        return
    if not trl.launch:
        raise ConfigError(
            f"stage {stage!r}: `deepspeed` is for processes that `launch` starts",
            remedy='say launch = ["torchrun", "--nproc_per_node", "8"], or take `deepspeed` out',
        )
    if find_spec("deepspeed") is None:
        raise MissingDependencyError(
            f"stage {stage!r} needs DeepSpeed, which is not installed",
            remedy="pip install deepspeed, or take `deepspeed` out of [stage.trl]",
        )


class SftSettings(StageSettings, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Training on examples, with either backend.

    Attributes:
        tokens: input tokens to train on with our loop, padding included.
        batch: cost of one part of a batch, in tokens (`batches`).
        warmup: share of the stage in which the rates rise.
        decay: share of the stage in which they fall.
        floor: rate at the end, as a share of the peak.
        minutes: time limit, see `loop.StageConfig`; 0: none.
        documents: share of the batches that are documents of the base.
        kinds: kind of document -> weight; {} with `documents` above 0: those of the base stage.
        trl: with a pretrained model; our own loop takes `report_to` of it, and of `extra` what an
            integration reads.
    """

    tokens: int = 0
    batch: int = 1500
    warmup: float = 0.01
    decay: float = 0.4
    floor: float = 0.02
    minutes: float = 0.0
    optimiser: OptimiserConfig = OptimiserConfig()
    documents: float = 0.0
    kinds: dict[str, float] = {}
    trl: TrlSettings = TrlSettings()

    def __post_init__(self) -> None:
        self.trl.check_extra("sft")

    def loop(self) -> StageConfig:
        """What our loop is told."""
        names = StageConfig.__struct_fields__
        return StageConfig(**{name: getattr(self, name) for name in names})


class Sampling(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """How training problems are rolled out; the defaults are the paper's stage 2.

    Attributes:
        problems: training problems, the kinds evenly; 0: all.
        samples: rollouts a problem.
        profile: whose success counts.
        base_url: OpenAI-compatible server that answers instead of the model in this process, e.g.
            vLLM with the checkpoint of the stage before; with the version, http://HOST:8000/v1.
        model: its name there.
        max_tokens: of one turn; 0: the server's own.
        seconds: wall clock of one rollout.
    """

    problems: int = 0
    samples: int = 8
    temperature: float = 0.9
    top_p: float = 0.95
    profile: Profile = "strict"
    base_url: str = ""
    model: str = ""
    max_tokens: int = 0
    seconds: float = 120.0
    threads: int = 32

    def __post_init__(self) -> None:
        if self.samples < 1 or self.threads < 1 or self.problems < 0:
            raise ConfigError("samples and threads must be at least 1, problems at least 0")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigError("temperature must be >= 0 and top_p in (0, 1]")

    def parameters(self) -> dict[str, float | int]:
        """What each request carries."""
        made: dict[str, float | int] = {"temperature": self.temperature, "top_p": self.top_p}
        return {**made, "max_tokens": self.max_tokens} if self.max_tokens else made

    def endpoint(self, previous: Path | None) -> Endpoint | None:
        """The server that samples the student; None: nobody but the student does.

        Args:
            previous: checkpoint of the stage before, by whose path a server calls it at first.

        Raises:
            ConfigError: `base_url` is no URL.
        """
        if not self.base_url:
            return None
        path = urlsplit(checked_url(self.base_url)).path
        bare = not path.strip("/")  # completions of token ids find /v1
        url = f"{self.base_url.rstrip('/')}/v1" if bare else self.base_url
        return Endpoint(base_url=url, model=self.model or str(previous))


def small_training(settings: SftSettings) -> SftSettings:
    """Settings of a dry run: two updates."""
    trl = msgspec.structs.replace(
        settings.trl,
        max_steps=2,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        save_steps=1,
        deepspeed="",
        launch=(),
        report_to=(),
        bf16=False,
        gradient_checkpointing=False,
    )
    return msgspec.structs.replace(settings, tokens=min(settings.tokens, 3000), trl=trl)
