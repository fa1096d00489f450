"""The GPU bench runs every stage on a toy shape here, and counts operations as the models do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="the stages of post-training need trl")

import torch
from bench.gpu import table
from bench.gpu_cases import SHAPES, Clock, Enough, pretrained, settings

from palio.train.backends.weights import load_model

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "billions"), [("0.6B", 0.596), ("4B", 4.02)])
def test_shapes_are_qwen3s(name: str, billions: float, tmp_path: Path) -> None:
    shape = SHAPES[name]
    with torch.device("meta"):
        model = load_model(pretrained(shape, tmp_path, lora=False), None, 0)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert pretrained(shape, tmp_path, lora=True).dtype == "bfloat16"
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    assert shape.parameters == matrices
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    few = shape.forward(1, 1)
    assert few == pytest.approx(2 * matrices, rel=0.001), "attention over one token is nothing"
    assert shape.forward(1, 14_336) > 14_336 * few * 1.1, "over many it is not"


def test_measures_are_of_the_updates_after_the_first() -> None:
    clock = Clock(10.0, 4)
    clock.ends = [5.0, 6.0, 8.0, 9.0]
    found = clock.measures(100, 4e12, [9.0, 0.5, 0.5, 0.5])
    assert found["step_seconds_all"] == [1.0, 2.0, 1.0]
    assert (found["step_seconds"], found["tokens_per_s"]) == (1.0, 100.0)
    assert found["model_tflop_per_s"] == pytest.approx(8.0), "sampling is left out"
    clock.ends = [5.0]
    with pytest.raises(Enough):
        clock.measures(100, 4e12)


def test_a_case_ends_with_its_last_update_before_weights_are_saved() -> None:
    clock = Clock(10.0, 2)
    clock(0.5, "")
    with pytest.raises(Enough):
        clock(1.0, "")


@pytest.mark.parametrize("kind", ["sft", "kto", "grpo"])
def test_every_kind_of_stage_takes_the_settings(kind: str) -> None:
    settings(8, 3).check_extra(kind)


def test_the_table_shows_failures_as_well() -> None:
    about = {"device": "x", "torch": "2", "transformers": "5", "date": "2026-01-01"}
    sft = {"name": "sft", "weights": "float32", "step_seconds_all": [1.0, 2.0]}
    rows = [{**sft, "tokens_per_s": 1234.0, "mfu": 0.4}, {"name": "kto", "error": "boom"}]
    made = table({"machine": about, "rows": rows})
    assert "| sft | float32 | 2 | - | - | 1,234 | - | - | 40 % | - |" in made
    assert "| kto | boom |" in made
    assert "mechanics only" in made


@pytest.mark.slow
def test_every_case_runs_on_a_toy_shape(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "bench.gpu", "--tiny", "--cpu", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    found = json.loads(out.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    stages = ["sft lora tiny 64", "sft full tiny 64", "sft lora tiny 128", "sft full tiny 128"]
    stages += ["kto lora tiny 64", "grpo lora tiny 64"]
    assert set(rows) == {"matmul", *stages, "engine"}
    for name in stages:
        row = rows[name]
        assert "error" not in row, row
        assert len(row["step_seconds_all"]) == 2
        assert row["tokens_per_s"] > 0
        assert row["label"] == "mechanics only"
        assert row["weights"] == ("float32" if "full" in name else "bfloat16")
    assert rows["grpo lora tiny 64"]["sampled_tokens_per_s"] > 0
    assert (tmp_path / "gpu.md").read_text().count("\n| ") >= len(rows) - 1
