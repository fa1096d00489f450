"""Our kernels say what transformers' say, padding and unwanted tokens left out; then they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from palio.train.checkpoint import load_checkpoint
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.scoring import own_kernels, pieces_of, twin_of
from palio.train.rl.trainer import lean
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROWS = ((2, 9, 30), (0, 4, 12), (7, 3, 25), (1, 8, 1), (5, 6, 40))
"""Padding on the left, prompt, completion."""


def batch(rows: Sequence[tuple[int, int, int]] = ROWS, seed: int = 0) -> dict[str, Tensor]:
    """Rows padded on both sides; about half of the completions' tokens are labels."""
    made = torch.Generator().manual_seed(seed)
    width = max(sum(row) for row in rows) + 2
    ids = torch.randint(5, 300, (len(rows), width), generator=made)
    places = torch.arange(width)
    mask = torch.stack([(places >= a) & (places < a + b + c) for a, b, c in rows])
    chosen = torch.rand(ids.shape, generator=made) < 0.5
    chosen &= torch.stack([(places >= a + b) & (places < a + b + c) for a, b, c in rows])
    return {
        "input_ids": ids.masked_fill(~mask, 0),
        "attention_mask": mask.long(),
        "labels": ids.masked_fill(~chosen, -100),
    }


def headed(policy: OwnPolicy, temperature: float = 1.0) -> Any:
    add_fused_lm_head(
        policy.model, temperature=temperature, outputs=("log_probs", "entropy", "mean_logits")
    )
    return policy.model


def pull(model: Any, out: Any, weight: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out.log_probs * weight).sum(), list(model.parameters())))


@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_gradients_are_those_of_trls_head(policy: OwnPolicy, threads: int) -> None:
    model, asked = headed(policy, 1.3), batch()
    weight = torch.randn(asked["labels"][:, 1:].shape, generator=torch.Generator().manual_seed(1))
    theirs = model(**asked, fused_lm_head=True)
    wanted = pull(model, theirs, weight)
    with policy.kernels([model], temperature=1.3, low=False, threads=threads):
        ours = model(**asked, fused_lm_head=True)
        found = pull(model, ours, weight)
        with torch.no_grad():
            plain = model(**asked, fused_lm_head=True)
    assert torch.equal(plain.log_probs, ours.log_probs.detach())
    assert torch.equal(ours.label_mask, theirs.label_mask)
    assert float(ours.loss.detach()) == pytest.approx(float(theirs.loss.detach()), abs=1e-5)
    for name in ("log_probs", "entropy", "mean_logits"):
        one, other = getattr(ours, name).detach(), getattr(theirs, name).detach()
        assert torch.allclose(one, other, atol=1e-5), name
        assert not one[~theirs.label_mask].any(), name
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.usefixtures("bfloat16_products")
def test_bfloat16_products_are_near_and_the_head_stays_exact(policy: OwnPolicy) -> None:
    model, asked = headed(policy), batch()
    exact = model(**asked, fused_lm_head=True).log_probs.detach()
    with policy.kernels([model], temperature=1.0, low=True, threads=1):
        low = model(**asked, fused_lm_head=True).log_probs.detach()
    assert 0 < float((low - exact).abs().max()) < 0.1


def test_the_twin_holds_the_same_parameters_and_learns_with_them(
    policy: OwnPolicy, checkpoint: Any
) -> None:
    twin = twin_of(policy.model, load_checkpoint(checkpoint).model.config)
    theirs = {id(weight) for weight in policy.model.parameters()}
    assert {id(weight) for weight in twin.parameters()} == theirs


def test_afterwards_the_model_is_what_it_was_even_after_an_error(policy: OwnPolicy) -> None:
    model, asked = headed(policy), batch()
    before = model.forward

    def broken() -> None:
        with policy.kernels([model], temperature=1.0, low=False, threads=2):
            assert model.forward != before
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken()
    assert model.forward == before
    assert model(**asked, fused_lm_head=True).log_probs.shape == asked["labels"][:, 1:].shape


def test_what_is_no_scoring_goes_where_it_went(policy: OwnPolicy, checkpoint: Any) -> None:
    model, asked = headed(policy), batch()
    nothing = {**asked, "labels": torch.full_like(asked["labels"], -100)}
    holed = {**asked, "attention_mask": asked["attention_mask"].clone()}
    holed["attention_mask"][0, 6] = 0
    wanted = [model(**each, fused_lm_head=True).log_probs.detach() for each in (nothing, holed)]
    logits = model(input_ids=asked["input_ids"]).logits.detach()
    config = load_checkpoint(checkpoint).model.config
    with own_kernels([model], config):
        found = [model(**each, fused_lm_head=True) for each in (nothing, holed)]
        assert torch.equal(model(input_ids=asked["input_ids"]).logits.detach(), logits)
    assert found[0].log_probs.requires_grad, "a batch without labels still has a gradient, of 0"
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.log_probs.detach(), other)


rows = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 900)), min_size=1, max_size=9
)


@given(rows, st.integers(0, 3))
def test_pieces_hold_every_label_once_and_no_padding(
    shape: list[tuple[int, int, int]], seed: int
) -> None:
    asked = batch(shape, seed)
    pieces = pieces_of(asked["input_ids"], asked["attention_mask"], asked["labels"])
    assert pieces is not None
    labels = asked["labels"][:, 1:].flatten()
    places = [int(at) for piece in pieces for at in piece.places]
    assert sorted(places) == (labels != -100).nonzero()[:, 0].tolist()
    lengths = []
    for piece in pieces:
        said = [each.ids[at + 1] for each in piece.examples for at in each.targets]
        assert said == labels[piece.places].tolist()
        assert all(each.targets[-1] + 2 == len(each.ids) for each in piece.examples)
        lengths += [len(each.ids) for each in piece.examples]
        sizes = [len(each.ids) for each in piece.examples]
        assert len(sizes) == 1 or len(sizes) * max(sizes) <= 1500
    assert lengths == sorted(lengths)


def grpo_batch() -> dict[str, Any]:
    """Two prompts of 2 and 4, completions of 5 and 3; the second has no advantage."""
    return {
        "prompt_ids": torch.tensor([[0, 0, 0, 8, 9], [0, 6, 7, 8, 9]]),
        "prompt_mask": torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 3, 4, 5, 0], [6, 7, 8, 0, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]]),
        "tool_mask": torch.tensor([[1, 1, 0, 1, 1, 0], [1, 0, 1, 0, 0, 0]]),
        "advantages": torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0], [0.0] * 6]),
        "num_items_in_batch": torch.tensor(9),
    }


def test_a_lean_batch_keeps_what_the_loss_needs() -> None:
    made = lean(grpo_batch(), every=False)
    assert made["prompt_ids"].tolist() == [[0, 0, 8, 9], [6, 7, 8, 9]]
    assert made["completion_ids"].shape == made["advantages"].shape == (2, 5)
    assert made["tool_mask"].tolist() == [[1, 1, 0, 0, 0], [0] * 5]
    assert made["num_items_in_batch"] == 9


def test_a_batch_without_advantages_keeps_its_shortest_row() -> None:
    plain = grpo_batch()
    plain["advantages"] *= 0
    assert lean(plain, every=False)["tool_mask"].tolist() == [[0] * 5, [1, 0, 1, 0, 0]]


def test_kernels_are_for_whole_weights_only(scene: Scene, policy: OwnPolicy) -> None:
    from peft import LoraConfig, get_peft_model

    del scene
    policy.model = get_peft_model(policy.model, LoraConfig(r=2, target_modules=["q_proj"]))
    before = policy.model.forward
    with policy.kernels([policy.model], temperature=1.0, low=False, threads=1):
        assert policy.model.forward == before
