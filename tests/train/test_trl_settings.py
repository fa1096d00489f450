"""What a recipe says to TRL reaches it, or is refused by the name of the stage."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="pretrained models are trained by TRL")

from palio.records import ConfigError
from palio.train.backends import places
from palio.train.checkpoint import save_checkpoint
from palio.train.model import Qwen3
from palio.train.preference.kto import KtoSettings, kto_arguments
from palio.train.reading import read_recipe
from palio.train.run import Trained, train
from palio.train.settings import TrlSettings
from palio.train.tokenizer import ChatTokenizer
from tests.train.test_stages import BARE, corpus  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def weights(small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def trained(weights: Path, corpus: Path, out: Path, **trl: Any) -> Trained:  # noqa: F811
    steps = {"max_steps": 2, "gradient_accumulation_steps": 1, **trl}
    model = {"backend": "transformers", "path": str(weights)}
    recipe = read_recipe({"name": "p", "model": model, "stage": [{"kind": "sft", "trl": steps}]})
    return train(recipe, corpus, out, options=BARE)


def test_a_field_or_a_value_that_trl_has_not_is_refused(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    for wrong, told in (
        ({"extra": {"adam_beta3": 0.9}}, "adam_beta3"),
        ({"lr_scheduler_type": "wavy"}, "wavy"),
    ):
        with pytest.raises(ConfigError, match=f"stage 'sft'.*{told}"):
            trained(weights, corpus, tmp_path / told, **wrong)
        chosen = KtoSettings(trl=TrlSettings(per_device_train_batch_size=2, **wrong))
        with pytest.raises(ConfigError, match=f"stage 'kto'.*{told}"):
            kto_arguments(chosen, tmp_path / "kto", 0, (1.0, 1.0))
    made = trained(weights, corpus, tmp_path / "ours", extra={"save_total_limit": 3})
    assert made.stages[0].counts["steps"] == 2, "extra goes before what palio says itself"


def test_packed_rows_are_trained_on_as_rows_of_their_own(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[dict[str, Any]] = []
    real = places.scored

    def kept(model: Any, inputs: dict[str, Any]) -> Any:
        batches.append(inputs)
        found = real(model, inputs)
        edges = [*(inputs["position_ids"][0] == 0).nonzero().flatten().tolist(), None]
        with torch.no_grad():
            apart = [
                real(model, {name: inputs[name][:, start:end] for name in ("input_ids", "labels")})
                for start, end in pairwise(edges)
            ]
        assert float(found[0].detach()) == pytest.approx(sum(float(one[0]) for one in apart))
        return found

    monkeypatch.setattr(places, "scored", kept)
    made = trained(weights, corpus, tmp_path / "run", packing=True)
    assert made.stages[0].counts["steps"] == 2
    assert any(int((each["position_ids"] == 0).sum()) > 1 for each in batches)
