"""A later stage of adapters over 16-bit weights, in shares, goes on from what was learned."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palio.train.backends.carried import ADAPTER, UNMERGED
from palio.train.recipe import Recipe, read_recipe
from palio.train.run import Options, train
from palio.train.stage import read_metrics
from tests.train.test_apart import FSDP, LORA, ROOT, start  # noqa: F401 - a fixture
from tests.train.test_stages import corpus  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def twice(start: Path, rows: int, **second: Any) -> Recipe:  # noqa: F811
    template = str(resources.files("palio.train") / "chat_template.jinja")
    model = {"backend": "transformers", "path": str(start), "template": template, "lora": LORA}
    trl = {"max_steps": 3, "learning_rate": 1e-3, "warmup_ratio": 0.0}
    trl |= {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 2}
    later = {**trl, "per_device_train_batch_size": rows, **second}
    stages = [{"kind": "sft", "trl": trl}, {"kind": "sft", "name": "more", "trl": later}]
    return read_recipe({"name": "p", "model": {**model, "dtype": "bfloat16"}, "stage": stages})


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_a_later_stage_by_fsdp_carries_what_was_learned(
    start: Path,  # noqa: F811
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    options = Options(uncertified=True)
    alone = train(twice(start, 2), corpus, tmp_path / "one", options=options)
    shares = twice(start, 1, launch=FSDP, report_to="tests.train.watched:Watched")
    made = train(shares, corpus, tmp_path / "two", options=options)
    losses = [[row["loss"] for row in read_metrics(e.stages[1].folder)] for e in (alone, made)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    first, one, two = (
        load_file(folder / UNMERGED / ADAPTER)
        for folder in (alone.stages[0].checkpoint, alone.final, made.final)
    )
    for name, whole in two.items():
        past = whole[:4] if "lora_A" in name else whole[:, :4]
        assert torch.equal(past, first[name]), "of the stage before, to the bit"
        assert torch.allclose(whole, one[name], rtol=0, atol=0.1 * float(one[name].abs().max()))
    assert made.stages[1].counts.keys() == alone.stages[1].counts.keys()
