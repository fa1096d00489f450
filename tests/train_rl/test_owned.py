"""`extra` cannot say what a setting of the stage decides; what it may say reaches TRL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.kto_config import KTOConfig
from trl.trainer.sft_config import SFTConfig

from palio.records import ConfigError
from palio.train.owned import OWNED
from palio.train.preference.kto import KtoSettings, kto_arguments
from palio.train.reading import load_recipe, read_recipe
from palio.train.rl.distill import DistillSettings, train_distill
from palio.train.rl.grpo import dr_grpo_arguments
from palio.train.rl.hooks import trl_fields
from palio.train.rl.settings import GrpoSettings
from palio.train.settings import TrlSettings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

KINDS = {"sft": SFTConfig, "kto": KTOConfig, "grpo": GRPOConfig, "distill": DistillationConfig}
NAMES = set(TrlSettings.__struct_fields__)


def read(kind: str, extra: dict[str, Any]) -> Any:
    return read_recipe({"stage": [{"kind": kind, "trl": {"extra": extra}}]}).stages[0].settings


@pytest.mark.parametrize(
    ("kind", "name", "decides"),
    [(kind, name, decides) for kind, owned in OWNED.items() for name, decides in owned.items()],
)
def test_what_is_decided_already_is_refused_by_name(kind: str, name: str, decides: str) -> None:
    with pytest.raises(ConfigError, match="take it out of `extra`") as caught:
        read(kind, {"optim": "sgd", name: 1})
    assert f"{kind} stage cannot set {name!r}: {decides} decides it" in caught.value.what


@pytest.mark.parametrize("kind", [*OWNED, "rejection", "teacher"])
def test_what_stage_trl_says_is_said_there(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"`learning_rate` of \[stage.trl\] decides it"):
        read(kind, {"learning_rate": 1.0})


@pytest.mark.parametrize("kind", OWNED)
def test_every_owned_field_is_one_of_trls(kind: str) -> None:
    known = {field.name for field in fields(KINDS[kind])}
    assert OWNED[kind].keys() <= known
    assert not OWNED[kind].keys() & NAMES


class Told(Exception):  # noqa: N818 - no fault
    """What a stage would have told TRL."""


def test_all_that_a_stage_says_over_extra_is_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(kind: type, fields: dict[str, Any], stage: str) -> None:
        del kind, stage
        raise Told(fields)

    for module in ("preference.kto", "rl.grpo", "rl.distill"):
        monkeypatch.setattr(f"palio.train.{module}.configured", told)
    nothing: Any = None
    stages: dict[str, Callable[[], object]] = {
        "kto": lambda: kto_arguments(KtoSettings(), tmp_path, 0, (1.5, 2.5)),
        "grpo": lambda: dr_grpo_arguments(GrpoSettings(base_url="http://h:9"), tmp_path, 0),
        "distill": lambda: train_distill(
            *(nothing, nothing, nothing, DistillSettings(), tmp_path), seed=0, report=nothing
        ),
    }
    for kind, stage in stages.items():
        with pytest.raises(Told) as caught:
            stage()
        over = caught.value.args[0].keys() - trl_fields(TrlSettings(), tmp_path, 0).keys()
        assert over
        assert over <= OWNED[kind].keys() | NAMES


def test_other_fields_go_through(tmp_path: Path) -> None:
    made = dr_grpo_arguments(read("grpo", {"epsilon": 0.1, "adam_beta2": 0.9}), tmp_path, 0)
    assert (made.epsilon, made.adam_beta2) == (0.1, 0.9)
    kto = kto_arguments(read("kto", {"adam_beta2": 0.9}), tmp_path, 0, (1.0, 1.0))
    assert kto.adam_beta2 == 0.9
    assert read("distill", {"adam_beta2": 0.9}).trl.extra == {"adam_beta2": 0.9}


def test_recipes_that_ship_are_read() -> None:
    for name in ("tiny", "qwen3-4b"):
        assert load_recipe(name).of_kind("grpo")
