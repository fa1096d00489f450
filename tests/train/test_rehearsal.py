"""A dry run at 4B width costs minutes: short rows, few tools, no logits that nobody reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from palio.corpus.rows import read_rows
from palio.judging.encoders import default_encoder
from palio.train.checkpoint import save_checkpoint
from palio.train.dry import ROWS, SHORTEST, TOOLS, _material, rehearsed
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.reading import load_recipe
from palio.train.rollouts import collect
from palio.train.settings import Sampling
from palio.train.tokenizer import ChatTokenizer
from palio.world.tools import SEVEN_TOOLS
from tests.train.conftest import Shop

pytest.importorskip("trl", reason="the later stages are TRL's")
peft = pytest.importorskip("peft", reason="adapters are PEFT's")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_a_step_is_one_batch_of_short_rows(tmp_path: Path) -> None:
    small = rehearsed(load_recipe("qwen3-4b"))
    for stage in small.stages:
        settings: Any = stage.settings
        assert settings.trl.gradient_accumulation_steps == 1
        assert settings.trl.max_steps == 2
    grpo: Any = small.stages[-1].settings
    assert (grpo.group, grpo.groups) == (2, 1)
    path, ground = _material(tmp_path, SHORTEST, TOOLS)
    rows = list(read_rows(path))
    assert len(rows) == SHORTEST
    offered = {tool["function"]["name"] for row in rows for tool in row.offered}
    assert offered == set(TOOLS)
    assert ground.tools == TOOLS
    shortest = max(map(len, path.read_bytes().splitlines()))
    every, _ = _material(tmp_path, ROWS, TOOLS)
    assert sorted(map(len, every.read_bytes().splitlines()))[SHORTEST - 1] == shortest


def test_a_policy_is_told_of_the_grounds_tools(shop: Shop, tmp_path: Path) -> None:
    some = shop.problems[:1]
    asked: list[set[str]] = []

    class Model:
        def complete(self, body: dict[str, Any]) -> dict[str, Any]:
            asked.append({tool["function"]["name"] for tool in body["tools"]})
            message = {"role": "assistant", "content": "no"}
            return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}

    before = Ground(some, {some[0].catalogue: shop.world}, default_encoder())
    few = Ground(some, {some[0].catalogue: shop.world}, default_encoder(), TOOLS)
    for number, ground in enumerate((before, few)):
        collect(
            ground,
            Model(),
            Sampling(samples=1, threads=1),
            tmp_path / str(number),
            name="p",
            seed=0,
            report=lambda *_: None,
        )
    assert asked[0] <= set(SEVEN_TOOLS)
    assert len(asked[0]) > len(TOOLS)
    assert asked[-1] == set(TOOLS)
    assert before.digest() != few.digest()
    assert before.digest() == Ground(some, before.worlds, before.encoder, SEVEN_TOOLS).digest()


@pytest.mark.parametrize("adapted", [False, True])
def test_sampling_asks_for_the_logits_of_the_last_place_only(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, adapted: bool
) -> None:
    """Those of a whole prompt would be gigabytes with a vocabulary of 151,936."""
    from transformers import AutoModelForCausalLM

    from palio.train.rl.sampler import Decoding, TransformersSampler

    save_checkpoint(tmp_path / "c", small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    widths: list[int] = []
    model.lm_head.register_forward_hook(lambda _, __, out: widths.append(out.shape[1]))
    if adapted:
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    prompt = tokenizer.encode("a mug of blue wool, please")
    with TransformersSampler(model, end=tokenizer.end) as sampler:
        found = sampler.sample(prompt, Decoding(4, 0.0, 1.0, 0))
    assert widths
    assert set(widths) == {1}
    with torch.no_grad():
        assert int(model(torch.tensor([prompt])).logits[0, -1].argmax()) == found.ids[0]
