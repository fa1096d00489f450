"""Greedy answers are the same tokens whether a conversation is alone or one of 32."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from palio.train.backends.slots import SlotSampler
from palio.train.backends.weights import load_model
from palio.train.engine import Sampled
from palio.train.recipe import PretrainedModel
from palio.train.rl.sampler import Decoding, QueuedSampler, TransformersSampler

peft = pytest.importorskip("peft", reason="adapters are PEFT's")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MANY, END = 32, 7
GREEDY = Decoding(max_tokens=12, temperature=0.0, top_p=1.0, seed=0)
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}
SAMPLERS: dict[str, Callable[[Any, int], QueuedSampler]] = {
    "slots": lambda model, most: SlotSampler(model, end=END, slots=most),
    "batches": lambda model, most: TransformersSampler(model, end=END, most=most),
}


def model_of(kind: str, dtype: str, *, adapted: bool) -> Any:
    """A random model; with an adapter whose dropout would show, if it were not off."""
    shape = {"model_type": kind, **SHAPE}
    model: Any = load_model(PretrainedModel(path="", dtype=dtype, shape=shape), None, 3)
    if not adapted:
        return model.eval()
    torch.manual_seed(5)
    lora = peft.LoraConfig(
        r=4,
        lora_alpha=32,
        lora_dropout=0.5,
        target_modules=["q_proj", "v_proj", "down_proj"],
        init_lora_weights=False,
    )
    return peft.get_peft_model(model, lora).eval()


def conversations() -> list[list[int]]:
    """32 prompts that share a beginning, of 41 to 160 tokens."""
    rng = random.Random(1)
    shared = [rng.randrange(8, 300) for _ in range(40)]
    return [
        shared + [rng.randrange(8, 300) for _ in range(rng.randrange(1, 121))] for _ in range(MANY)
    ]


class Gate(torch.nn.Module):
    """Holds the first prompt back until all are asked; keeps how many rows were read at once."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config
        self.opened, self.widest = threading.Event(), 0

    def forward(self, logits_to_keep: int = 1, **told: Any) -> Any:
        self.opened.wait()
        self.widest = max(self.widest, len(told["input_ids"]))
        return self.inner(logits_to_keep=logits_to_keep, **told)


def together(sampler: QueuedSampler, gate: Gate, prompts: list[list[int]]) -> list[Sampled]:
    """The answers to prompts that are all asked before any is answered."""
    gate.opened.clear()
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(sampler.sample, ids, GREEDY) for ids in prompts]
        while isinstance(sampler, SlotSampler) and waiting(sampler) < len(prompts) - 1:
            time.sleep(0.01)
        gate.opened.set()
        return [one.result() for one in asked]


def waiting(sampler: SlotSampler) -> int:
    """Prompts that have come and are not read; one more may be at the gate."""
    return sampler._inbox.qsize() + len(sampler._slots.waiting)


def longer(prompts: list[list[int]], answers: list[Sampled]) -> list[list[int]]:
    """The conversations with their answers and what a tool would say, one of a length."""
    return [
        [*ids, *answer.ids, END, *range(8, 9 + at % 5)]
        for at, (ids, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def two_turns(kind: str, model: Any, many: int) -> tuple[list[Sampled], list[Sampled], int]:
    """Both turns of every conversation, asked `many` at once, and the most rows of a step."""
    gate, first = Gate(model), conversations()
    with SAMPLERS[kind](gate, many) as sampler:
        turns: list[list[Sampled]] = []
        for prompts in (first, None):
            prompts = prompts or longer(first, turns[0])
            parts = (prompts[at : at + many] for at in range(0, MANY, many))
            turns.append([one for part in parts for one in together(sampler, gate, part)])
    return turns[0], turns[1], gate.widest


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_32_conversations_at_once_are_answered_as_one_by_one(
    architecture: str, adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palio.train.rl.sampler._GATHER_S", 60.0)  # until 32 have come
    model = model_of(architecture, "float32", adapted=adapted)
    *alone, widest = two_turns("slots", model, 1)
    assert widest == 1
    assert len({tuple(one.ids) for one in alone[0]}) > MANY // 2, "they are not all alike"
    for kind in SAMPLERS:
        *at_once, widest = two_turns(kind, model, MANY)
        assert widest == MANY
        for one, other in zip((*alone[0], *alone[1]), (*at_once[0], *at_once[1]), strict=True):
            assert one.ids == other.ids, kind
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
