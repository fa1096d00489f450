"""Every stage of the 4B recipes runs at the 4B width, on the real vocabulary: mechanics only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from palio.train.dry import dry_run
from palio.train.reading import load_recipe
from palio.train.run import StageDone

pytest.importorskip("trl", reason="pretrained models are trained by TRL")
pytest.importorskip("peft", reason="adapters are PEFT's")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.skipif(
        find_spec("dashscope") is None, reason="the package dashscope ships Qwen's rank file"
    ),
]
WIDTH = {"hidden_size": 2560, "intermediate_size": 9728, "vocab_size": 151_936}


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Removed afterwards: a checkpoint of this width is a gigabyte, and pytest keeps folders."""
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


def rehearse(name: str, out: Path, stages: int | None = None) -> tuple[StageDone, ...]:
    """The dry run of a recipe, or of its first stages."""
    whole = load_recipe(name)
    recipe = msgspec.structs.replace(whole, stages=whole.stages[:stages])
    made = dry_run(recipe, out, threads=1)
    for stage in made.stages:
        shape = json.loads((stage.checkpoint / "config.json").read_bytes())
        assert {field: shape[field] for field in WIDTH} == WIDTH
        manifest = json.loads((stage.checkpoint / "manifest.json").read_bytes())
        assert manifest["config"]["dry"] is True, "nothing of it can be taken for a result"
        assert manifest["counts"]["steps"] == 2
        assert (stage.checkpoint / "tokenizer.json").is_file()
        assert (stage.checkpoint / "model.safetensors").stat().st_size > 0.9e9
    return made.stages


@pytest.mark.timeout(3600)
def test_the_recipe_with_an_adapter_goes_through_its_five_stages(out: Path) -> None:
    """About 500 seconds of one core."""
    made = rehearse("qwen3-4b", out)
    assert [stage.kind for stage in made] == ["sft", "rejection", "teacher", "kto", "grpo"]
    rolled = {stage.kind: stage.counts for stage in made}
    assert rolled["rejection"]["rolled out"] == 2
    assert rolled["kto"]["rollouts"] == 4
    assert rolled["grpo"]["rollouts"] == 4


@pytest.mark.timeout(3600)
def test_the_recipe_of_all_weights_goes_through_its_stages(out: Path) -> None:
    made = rehearse("qwen3-4b-full", out)
    assert [stage.kind for stage in made] == ["sft", "rejection"]
    assert made[1].counts["rolled out"] == 2
