"""The fast formulation learns what the plain one does: same values, gradients and curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu

from palio.train import kernels, model
from palio.train.model import ModelConfig, Qwen3
from palio.train.optimiser import Optimiser, OptimiserConfig, in_turn, orthogonal


def plain_norm_rotate(x: Tensor, gain: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    unit = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * gain
    first, second = unit.chunk(2, -1)
    return (unit * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


def plain_swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return silu(gate) * up


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    share = q.shape[2] // k.shape[2]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(2)


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    return linear(x, weight.to(x.dtype))


PLAIN: dict[str, Callable[..., Tensor]] = {
    "norm_rotate": plain_norm_rotate,
    "swiglu": plain_swiglu,
    "causal_attention": plain_attention,
    "product": plain_product,
}


def test_heads_are_normalised_and_turned_as_by_the_plain_formula() -> None:
    torch.manual_seed(0)
    whole = torch.randn(2, 7, 5, 8, requires_grad=True)
    gain = torch.randn(3, 8).requires_grad_()
    with torch.no_grad():
        gain[0, 0] = 0.0
    angles = torch.outer(torch.arange(7.0), torch.rand(4)).repeat(1, 2)[:, None]
    weight = torch.randn(2, 7, 3, 8)
    found = []
    for formula in (kernels.norm_rotate, plain_norm_rotate):
        out = formula(whole[:, :, :3], gain, angles.cos(), angles.sin(), 1e-6)
        found.append((out, *torch.autograd.grad((out * weight).sum(), (whole, gain))))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 64, 100])
def test_a_product_of_filled_up_rows_is_that_of_the_rows(rows: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(1, rows, 24).bfloat16().requires_grad_()
    weight = torch.randn(16, 24, requires_grad=True)
    pull = torch.randn(1, rows, 16).bfloat16()
    found = []
    for formula in (kernels.product, plain_product):
        out = formula(x, weight)
        found.append((out, *torch.autograd.grad(out, (x, weight), pull)))
    torch.testing.assert_close(found[0], found[1], atol=0.05, rtol=0.02)
    assert found[0][0].shape == (1, rows, 16)
    assert found[0][2].dtype == torch.float32


def plain_orthogonal_step(weights: Sequence[Tensor], momenta: list[Tensor], rate: float) -> None:
    """Muon as it stood before: one matrix at a time, the tall ones turned over."""
    for weight, momentum in zip(weights, momenta, strict=True):
        gradient = weight.grad
        assert gradient is not None
        momentum.mul_(0.95).add_(gradient)
        ahead = gradient.add(momentum, alpha=0.95)
        tall = weight.shape[0] > weight.shape[1]
        update = orthogonal((ahead.mT if tall else ahead).contiguous()[None])[0].float()
        length = 0.02 * rate * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
        weight.data.add_(update.mT if tall else update, alpha=-length)


def test_stacks_move_as_single_matrices_do() -> None:
    made = Qwen3(ModelConfig(64, 32, 64, layers=2, heads=2, kv_heads=1, head_dim=16))
    made.initialise(0)
    optimiser = Optimiser(made, OptimiserConfig(clip=0.0))
    matrices = [
        i for i, (n, w) in enumerate(made.named_parameters()) if "proj" in n and w.dim() > 1
    ]
    copies = [list(made.parameters())[i].detach().clone() for i in matrices]
    momenta = [torch.zeros_like(copy) for copy in copies]
    torch.manual_seed(1)
    for _ in range(3):
        gradients = [torch.randn_like(weight) for weight in made.parameters()]
        for copy, place in zip(copies, matrices, strict=True):
            copy.grad = gradients[place].clone()
        plain_orthogonal_step(copies, momenta, 0.5)
        optimiser.step(gradients, 0.5)
    for copy, place in zip(copies, matrices, strict=True):
        torch.testing.assert_close(list(made.parameters())[place], copy, atol=2e-3, rtol=0.02)
    held = optimiser.state_dict()["momentum"]
    assert sorted(held) == matrices
    torch.testing.assert_close([held[place] for place in matrices], momenta)
    other = Optimiser(made, OptimiserConfig(clip=0.0))
    other.load_state_dict(optimiser.state_dict())
    torch.testing.assert_close(other.state_dict()["momentum"], held)


def decaying(decay: float, spread: Any = in_turn) -> tuple[Qwen3, Optimiser]:
    made = Qwen3(ModelConfig(64, 32, 64, layers=2, heads=2, kv_heads=1, head_dim=16))
    made.initialise(0)
    config = OptimiserConfig(weight_decay=decay, matrix_rate=0.1, other_rate=0.2)
    optimiser = Optimiser(made, config)
    optimiser.step([torch.zeros_like(weight) for weight in made.parameters()], 0.5, spread)
    return made, optimiser


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Gradients are off in the thread that calls, not in those that work."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda piece: piece(), work))


@pytest.mark.parametrize("spread", [in_turn, in_threads])
def test_matrices_and_embeddings_decay_and_gains_do_not(spread: Any) -> None:
    """Without a gradient nothing else moves them: what is left is the decay."""
    before = decaying(0.0)[0].state_dict()
    made, _ = decaying(0.4, spread)
    for name, weight in made.named_parameters():
        rate = 0.2 if "embed" in name else 0.1
        share = 1.0 if weight.dim() < 2 else 1.0 - 0.5 * rate * 0.4
        assert ("norm" in name) == (share == 1.0), name
        torch.testing.assert_close(weight.detach(), before[name] * share, rtol=1e-6, atol=0)


def test_decay_of_embeddings_is_that_of_adamw_and_a_state_of_before_does_not_double_it() -> None:
    made, optimiser = decaying(0.4)
    embeddings = made.get_parameter(next(n for n, _ in made.named_parameters() if "embed" in n))
    plain = embeddings.detach().clone().requires_grad_()
    adam = torch.optim.AdamW([plain], lr=0.1, betas=(0.9, 0.95), weight_decay=0.4, fused=True)
    state = optimiser.state_dict()
    for group in state["adam"]["param_groups"]:
        group["weight_decay"] = 0.4
    fresh = Optimiser(made, optimiser.config)
    fresh.load_state_dict(state)
    torch.manual_seed(0)
    plain.grad = torch.zeros_like(plain)
    adam.step()  # the step that `decaying` made, but for its decay
    with torch.no_grad():
        plain.copy_(embeddings)
    for _ in range(3):
        gradients = [torch.randn_like(weight) for weight in made.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
        place = next(i for i, weight in enumerate(made.parameters()) if weight is embeddings)
        plain.grad = gradients[place] / norm
        adam.step()
        fresh.step(gradients, 0.5)
    torch.testing.assert_close(embeddings, plain, rtol=1e-5, atol=1e-7)


def curve(steps: int) -> list[float]:
    made = Qwen3(ModelConfig(64, 64, 96, layers=2, heads=4, kv_heads=2, head_dim=16))
    made.initialise(0)
    optimiser = Optimiser(made, OptimiserConfig())
    generator = torch.Generator().manual_seed(0)
    losses = []
    for step in range(steps):
        places = [torch.randint(1, 64, (5,), generator=generator)]
        for _ in range(40 + step % 3):
            places.append((places[-1] * 5 + 3) % 64)
        ids = torch.stack(places, 1)
        keep = torch.arange(ids[:, :-1].numel())
        states = made.hidden(ids[:, :-1], keep, low=True)
        loss = cross_entropy(made.logits(states).float(), ids[:, 1:].flatten())
        optimiser.step(torch.autograd.grad(loss, list(made.parameters())), min(1.0, step / 5))
        losses.append(float(loss.detach()))
    return losses


def test_the_curve_is_that_of_the_plain_formulation(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = curve(30)
    for name, formula in PLAIN.items():
        monkeypatch.setattr(model, name, formula)
    plain = curve(30)
    assert plain[-1] < 0.9 * plain[0]
    assert fast == pytest.approx(plain, abs=0.03)
    assert sum(fast) / 30 == pytest.approx(sum(plain) / 30, abs=0.01)
