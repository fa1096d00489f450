"""A later stage of adapters over 16-bit weights, in shares, goes on from what was learned."""

from __future__ import annotations

import json
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palio.train.backends.carried import ADAPTER, UNMERGED
from palio.train.backends.merging import ROUNDING
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.run import Options, Trained, train
from palio.train.stage import read_metrics
from tests.train.test_apart import FSDP, LORA, ROOT, TORCHRUN, start  # noqa: F401 - a fixture
from tests.train.test_stages import corpus  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PLAIN = {"per_device_train_batch_size": 2, "report_to": "tests.train.watched:Watched"}
APART = {**PLAIN, "per_device_train_batch_size": 1}


def twice(start: Path, first: dict[str, Any], second: dict[str, Any]) -> Recipe:  # noqa: F811
    template = str(resources.files("palio.train") / "chat_template.jinja")
    model = {"backend": "transformers", "path": str(start), "template": template, "lora": LORA}
    trl = {"max_steps": 3, "learning_rate": 1e-3, "warmup_ratio": 0.0}
    trl |= {"gradient_accumulation_steps": 1}
    stages = [
        {"kind": "sft", "trl": {**trl, **first}},
        {"kind": "sft", "name": "more", "trl": {**trl, **second}},
    ]
    return read_recipe({"name": "p", "model": {**model, "dtype": "bfloat16"}, "stage": stages})


def trained(recipe: Recipe, corpus: Path, out: Path) -> Trained:  # noqa: F811
    """With what the layers held at the beginning and the end of each stage."""
    out.mkdir()
    (out / "weigh").touch()
    return train(recipe, corpus, out, options=Options(uncertified=True))


def assert_goes_on(made: Trained, out: Path) -> None:
    """The second stage begins where the first one ended, in float32, and hands all of it on."""
    end, begin = (load_file(out / f"{name}.safetensors") for name in ("end-sft", "begin-more"))
    assert end.keys() == begin.keys()
    assert end, "layers with an adapter"
    for name, value in end.items():
        if name.endswith(".own"):
            assert torch.equal(begin[name], value), "what the run began with"
            continue
        gap = float((begin[name] - value).norm() / value.norm())
        assert gap < 1e-5, f"{name}: {gap}"  # an adapter of 16 bits would be 2.7e-3 away
    lost = json.loads((made.stages[0].checkpoint / ROUNDING).read_bytes())["error"]
    assert lost > 0.1, "share of it that is wrong in merged bfloat16 weights: 0.43 was measured"
    first, last = (load_file(each.checkpoint / UNMERGED / ADAPTER) for each in made.stages)
    for name, whole in last.items():
        past = whole[:4] if "lora_A" in name else whole[:, :4]
        assert torch.equal(past, first[name]), "of the stage before, to the bit"


def assert_as_alone(made: Trained, alone: Trained, far: float) -> None:
    """Losses and what was learned are those of one process.

    Args:
        far: share of an update that may be another one: where a gradient is all rounding, AdamW
            steps as far as elsewhere.
    """
    for each, other in zip(made.stages, alone.stages, strict=True):
        losses = [[row["loss"] for row in read_metrics(one.folder)] for one in (each, other)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-3)
        assert each.counts.keys() == other.counts.keys()
    one, two = (load_file(each.final / UNMERGED / ADAPTER) for each in (alone, made))
    for name in (name for name in one if "lora_A" in name):
        of = name.replace("lora_A", "lora_B")
        wanted, found = (held[of] @ held[name] for held in (one, two))
        assert (found - wanted).norm() < far * wanted.norm(), name


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_a_later_stage_by_fsdp_carries_what_was_learned(
    start: Path,  # noqa: F811
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    one, two = tmp_path / "one", tmp_path / "two"
    alone = trained(twice(start, PLAIN, PLAIN), corpus, one)
    assert_goes_on(alone, one)
    made = trained(twice(start, PLAIN, {**APART, "launch": FSDP}), corpus, two)
    assert_goes_on(made, two)
    assert_as_alone(made, alone, 0.2)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_both_stages_by_zero3_carry_what_was_learned(
    start: Path,  # noqa: F811
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `bf16` DeepSpeed has the adapter in 16 bits, and its optimiser what that learned."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    low = {**PLAIN, "bf16": True}
    alone = trained(twice(start, low, low), corpus, tmp_path / "one")
    zero = {**APART, "bf16": True, "launch": TORCHRUN, "deepspeed": "zero3"}
    made = trained(twice(start, zero, zero), corpus, tmp_path / "two")
    assert_goes_on(made, tmp_path / "two")
    assert_as_alone(made, alone, 0.2)  # 0.08 measured
