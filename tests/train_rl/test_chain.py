"""The later stages in a recipe's chain: with our model, and with any model of transformers."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from palio.records import ConfigError, InputError
from palio.train.card import write_card
from palio.train.checkpoint import load_checkpoint
from palio.train.dry import dry_run
from palio.train.reading import read_recipe
from palio.train.rl.hooks import STATES
from palio.train.rows import told_digests
from palio.train.seen import read_seen
from palio.train.stage import read_metrics
from palio.train.text import template_digest

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

LATER: list[dict[str, Any]] = [
    {"kind": "distill"},
    {"kind": "kto"},
    {"kind": "grpo"},
    {"kind": "grpo", "name": "outcome", "reward": "outcome"},
    {"kind": "grpo", "name": "prefix", "reward": "prefix", "problems": 2},
]
SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "layers": 2,
    "head_dim": 16,
    "vocabulary": 800,
    "lay_out": False,
}


def test_our_model_goes_through_every_stage(tmp_path: Path) -> None:
    raw = {"name": "t", "model": SHAPE, "stage": [{"kind": "sft", "tokens": 2000}, *LATER]}
    made = dry_run(read_recipe(raw), tmp_path, threads=1)
    assert [stage.kind for stage in made.stages] == [
        "sft",
        "distill",
        "kto",
        "grpo",
        "grpo",
        "grpo",
    ]
    before = load_checkpoint(made.stages[0].checkpoint)
    digests = [told_digests(stage.folder) for stage in made.stages]
    assert {each["template"] for each in digests} == {template_digest()}
    own = {each["rows"] for each in digests}
    assert len(own) == 5, (
        "each has rows of its own; a model that solves nothing repeats those of grpo"
    )
    for stage in made.stages[1:]:
        after = load_checkpoint(stage.checkpoint)
        old, new = before.model.state_dict(), after.model.state_dict()
        assert old.keys() == new.keys()
        manifest = json.loads((stage.checkpoint / "manifest.json").read_bytes())
        assert manifest["counts"]["steps"] == stage.counts["steps"] > 0
        assert manifest["config"]["dry"] is True
        assert {"corpus", "recipe", "checkpoint", "template", "rows"} <= manifest["inputs"].keys()
        assert read_metrics(stage.folder), "metrics.jsonl"
        assert not (stage.folder / STATES).exists(), "optimiser states are not kept"
        seen = read_seen(stage.folder)
        assert seen, "every rollout leaves a line"
        assert all(each.problem_id for each in seen)
        AutoModelForCausalLM.from_pretrained(stage.checkpoint)
    whole = load_checkpoint(made.final).model.state_dict()
    assert not all(torch.equal(v, whole[n]) for n, v in before.model.state_dict().items())
    card = write_card(tmp_path).read_text()
    for told in digests:
        assert f"- every id and mask: `{told['rows']}`" in card
    assert f"| template | `{template_digest()}` |" in card
    assert f"| rows | `{digests[-1]['rows']}` |" in card
    assert made.named("kto").counts["rollouts"] == 4
    assert {"unscored", "too_long", "silent"} <= made.named("kto").counts.keys()
    assert "success" in made.named("grpo").measures
    again = dry_run(read_recipe(raw), tmp_path, threads=1)
    assert all(stage.skipped for stage in again.stages)


def test_a_pretrained_model_with_an_adapter_goes_through_the_stages(
    checkpoint: Path, tmp_path: Path
) -> None:
    model = {
        "backend": "transformers",
        "path": str(checkpoint),
        "template": str(resources.files("palio.train") / "chat_template.jinja"),  # without tools
        "lora": {"rank": 4, "dropout": 0.3, "targets": ["q_proj", "up_proj"]},
        "rehearsal": {"shape": {}, "dtype": "float32"},
    }
    raw = {"name": "p", "model": model, "stage": LATER[1:3]}
    made = dry_run(read_recipe(raw), tmp_path, threads=1)
    for stage in made.stages:
        weights = AutoModelForCausalLM.from_pretrained(stage.checkpoint).state_dict()
        assert not any("lora" in name for name in weights), "the adapter is merged"
        assert (stage.checkpoint / "tokenizer.json").exists()
        assert told_digests(stage.folder)["template"] == template_digest(), "that of the recipe"
    assert made.named("grpo").measures["sampling/logp_gap"] < 1e-3


def test_a_later_stage_of_a_pretrained_model_leaves_what_sft_leaves(
    checkpoint: Path, tmp_path: Path
) -> None:
    """A base whose own answers end otherwise: a server stops where generation_config.json says."""
    base = tmp_path / "base"
    shutil.copytree(checkpoint, base)
    for name in ("config.json", "generation_config.json"):
        told = json.loads((base / name).read_text())
        (base / name).write_text(json.dumps({**told, "eos_token_id": 0, "use_cache": False}))
    model = {
        "backend": "transformers",
        "path": str(base),
        "template": str(resources.files("palio.train") / "chat_template.jinja"),
        "lora": {"rank": 4, "targets": ["q_proj"]},
        "rehearsal": {"shape": {}, "dtype": "float32"},
    }
    raw = {"name": "p", "model": model, "stage": [{"kind": "sft"}, *LATER[:3]]}
    made = dry_run(read_recipe(raw), tmp_path / "run", threads=1)
    end = load_checkpoint(checkpoint).tokenizer.end
    left = []
    for stage in made.stages:
        generation = json.loads((stage.checkpoint / "generation_config.json").read_text())
        assert generation["eos_token_id"] == end != 0, stage.kind
        assert json.loads((stage.checkpoint / "config.json").read_text())["use_cache"] is True
        left.append({str(p.relative_to(stage.checkpoint)) for p in stage.checkpoint.rglob("*.*")})
    assert "adapter/adapter_model.safetensors" in left[0]
    assert left[1:] == [left[0]] * 3


def test_a_stage_that_needs_a_checkpoint_or_problems_says_so(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, InputError), match="checkpoint"):
        dry_run(read_recipe({"model": SHAPE, "stage": [{"kind": "grpo"}]}), tmp_path)
    with pytest.raises(ConfigError, match="groups"):
        read_recipe({"model": SHAPE, "stage": [{"kind": "grpo", "group": 7}]})
