"""SFT, KTO and Dr. GRPO over 16-bit weights hand on what they learned, at the rates of qwen3-4b."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from palio.corpus.rows import row_of
from palio.records import to_json
from palio.train.backends import job, merging, weights
from palio.train.backends.carried import UNMERGED, carried
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.merging import ROUNDING, merged
from palio.train.backends.weights import load_model, load_tokenizer
from palio.train.checkpoint import MANIFEST, WEIGHTS, check_whole
from palio.train.reading import read_recipe
from palio.train.recipe import PretrainedModel
from palio.train.rl import opening
from palio.train.rl.grpo import train_grpo
from palio.train.rl.opening import pretrained_policy
from palio.train.rl.policy import merged_weights
from palio.train.rl.rollouts import WorldRoller
from palio.train.run import Options, train
from palio.world.artefacts import read_manifest
from tests.train_rl.conftest import Scene
from tests.train_rl.test_grpo import Graded, quiet
from tests.train_rl.test_grpo import settings as grpo_settings
from tests.train_rl.test_handed_on import LORA, TARGETS, TEMPLATE, Weights, exact_logps, logps

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def low(checkpoint: Path, tmp_path: Path) -> PretrainedModel:
    """The scene's model in bfloat16, as a model of transformers."""
    base = tmp_path / "base"
    shutil.copytree(checkpoint, base)
    (base / MANIFEST).unlink()
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    return PretrainedModel(path=str(base), dtype="bfloat16", lora=LORA, template=TEMPLATE)


class Live:
    """What each stage had trained when it was about to be saved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ids: Tensor) -> None:
        self.ids, self.weights, self.said = ids, list[Weights](), list[Tensor]()
        for module in (job, opening):
            monkeypatch.setattr(module, "merged", self._seen)

    def _seen(self, trained: Any, *more: Any) -> Any:
        trained.eval()
        self.said.append(logps(trained, self.ids))
        self.weights.append(
            {name: value.double() for name, value in merged_weights(trained).items()}
        )
        return merged(trained, *more)


def assert_handed_on(
    live: Live, at: int, spec: PretrainedModel, checkpoint: Path, before: Path | None
) -> None:
    """The next stage begins as the policy that this one had trained, and `ROUNDING` is right."""
    check_whole(checkpoint)
    begun = load_model(spec, checkpoint, 77).eval()
    assert (logps(begun, live.ids) - live.said[at]).abs().max() < 0.03, "rounded products"
    first = {name: value.double() for name, value in begun.state_dict().items()}
    wanted = exact_logps(live.weights[at], begun.config, live.ids)
    effect = float((wanted - exact_logps(first, begun.config, live.ids)).abs().mean())
    apart = float((logps(begun.double(), live.ids) - wanted).abs().mean())
    assert apart < 0.01 * effect + 1e-7
    served, earlier = (_served(folder, first) for folder in (checkpoint, before))
    past = carried(load_model(spec, before, 0)) if before is not None else {}
    change, update, handed = [], [], []
    for name, part in carried(load_model(spec, checkpoint, 0)).items():
        key = f"{name}.weight"
        old = past[name].delta(torch.device("cpu")).double() if past else 0.0
        update.append((live.weights[at][key] - first[key] - old).flatten())
        handed.append((part.delta(torch.device("cpu")).double() - old).flatten())
        change.append((served[key] - earlier[key]).flatten())
    true, got, visible = (torch.cat(parts) for parts in (update, handed, change))
    assert float(true.norm()) > 0
    assert float((got - true).norm()) < 0.01 * float(true.norm()), "float32 sums are this exact"
    told = json.loads((checkpoint / ROUNDING).read_text())
    kept, error = visible @ true / (true @ true), (visible - true).norm() / true.norm()
    assert (told["kept"], told["error"]) == pytest.approx((float(kept), float(error)), abs=0.02)
    assert error > 0.05, "of these rates"


def _served(folder: Path | None, first: Weights) -> Weights:
    if folder is None:
        return first
    return {name: value.double() for name, value in load_file(folder / WEIGHTS).items()}


@pytest.mark.parametrize("instructions", [True, False])
def test_sft_and_kto_hand_on_what_they_learned(
    scene: Scene,
    low: PretrainedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    instructions: bool,
) -> None:
    monkeypatch.setattr(weights, "multiplies_bfloat16", lambda: instructions)
    live = Live(monkeypatch, torch.randint(0, scene.tokenizer.size, (2, 30)))
    corpus = tmp_path / "train.jsonl"
    rows = [row_of(talk, "told") for talk in scene.talks[:6]]
    corpus.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    trl = {"max_steps": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    sampling = {"problems": 2, "samples": 2, "max_tokens": 8, "threads": 4}
    stages = [
        {"kind": "sft", "trl": {**trl, "learning_rate": 3e-5}},
        {"kind": "kto", "sampling": sampling, "trl": {**trl, "learning_rate": 5e-6}},
    ]
    lora = {"rank": 4, "alpha": 6, "dropout": 0.1, "targets": list(TARGETS)}
    model = {"backend": "transformers", "path": low.path, "dtype": "bfloat16", "lora": lora}
    raw = {"model": {**model, "template": TEMPLATE}, "stage": stages}
    # a dry run's labels are made up: random weights solve nothing
    dry = msgspec.structs.replace(read_recipe(raw), dry=True)
    options = Options(uncertified=True, threads=1)
    made = train(dry, corpus, tmp_path / "run", ground=scene.ground, options=options)
    assert len(live.said) == 2
    before = None
    for at, stage in enumerate(made.stages):
        assert_handed_on(live, at, low, stage.checkpoint, before)
        before = stage.checkpoint
        rounding = json.loads((stage.checkpoint / ROUNDING).read_text())
        assert rounding["dtype"] == "bfloat16"
        manifest = read_manifest(stage.checkpoint / MANIFEST)
        assert manifest is not None
        assert manifest.counts["served_error_permille"] == round(1000 * rounding["error"])
        assert stage.counts["served_kept_permille"] == round(1000 * rounding["kept"])
        assert {ROUNDING, f"{UNMERGED}/adapter_model.safetensors"} <= manifest.outputs.keys()


def test_grpo_at_1e_6_hands_on_what_its_served_weights_cannot_hold(
    scene: Scene,
    low: PretrainedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    live = Live(monkeypatch, torch.randint(0, scene.tokenizer.size, (2, 30)))
    codec = PretrainedCodec(load_tokenizer(low, None), template_text(TEMPLATE))
    policy = pretrained_policy(low, codec, None, 1)
    chosen = grpo_settings(2)
    chosen = grpo_settings(2, trl=msgspec.structs.replace(chosen.trl, learning_rate=1e-6))
    ground = scene.ground
    world = WorldRoller(ground.problems[:6], ground, codec, chosen.play(), scene.teacher)
    train_grpo(policy, Graded(world), chosen, tmp_path, seed=1, report=quiet)
    out = tmp_path / "grpo" / "checkpoint"
    with caplog.at_level(logging.WARNING, logger=merging.__name__):
        policy.save(out, config={}, inputs={}, counts={"steps": 2}, seed=1)
    assert_handed_on(live, 0, low, out, None)
    told = json.loads((out / ROUNDING).read_text())
    assert told["kept"] < 0.5
    assert told["error"] > 0.5
    assert "--enable-lora" in caplog.text
    assert 'dtype = "float32"' in caplog.text
