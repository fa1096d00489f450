"""Whether training processes will share the weights out is read from what a recipe names."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from palio.records import ConfigError
from palio.train.backends.launch import options_of
from palio.train.settings import TrlSettings, shipped


def sharded_policy() -> ConfigError:
    """A policy of which each process has but a share was to be sampled in place."""
    return ConfigError(
        "a policy whose weights are sharded over processes cannot be sampled in place",
        remedy="let a vLLM server sample (grpo: `base_url`), or launch without FSDP and ZeRO-3",
    )


def check_in_place(trl: TrlSettings) -> None:
    """Refuse to sample in place what processes will share out, as far as the recipe tells.

    A launcher may have settings of its own, which only the processes know.

    Raises:
        ConfigError: they are told to, by FSDP or ZeRO-3.
    """
    if not trl.launch:
        return
    options = list(options_of(trl.launch))
    files = [value for before, value in options if before.endswith("config_file")]
    told = ("--zero_stage", "3") in options or "--use_fsdp" in trl.launch or trl.extra.get("fsdp")
    if told or _zero_stage(trl.deepspeed) == 3 or any(_shared_by(file) for file in files):
        raise sharded_policy()


def _zero_stage(deepspeed: str) -> int:
    """Of a configuration of DeepSpeed's; 0 where it does not tell."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(Path(shipped(deepspeed)).read_text("utf-8"))
        return int(told["zero_optimization"]["stage"])
    return 0


def _shared_by(file: str) -> bool:
    """Whether a configuration of accelerate's says so."""
    from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
        load_config_from_file,
    )

    try:
        told: Any = load_config_from_file(file)
    except Exception:  # noqa: BLE001 - no file of accelerate's: what reads it will say so
        return False
    zero = getattr(told, "deepspeed_config", {}).get("zero_stage")
    return told.distributed_type.value == "FSDP" or zero == 3
