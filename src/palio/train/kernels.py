"""The four position-wise and attention kernels, with gradients written out by hand.

Same results as the plain formulas (tests compare values and gradients), fewer passes over memory:
at this model size element-wise passes, not products, are what a CPU core spends its time on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu


class _RmsNorm(torch.autograd.Function):
    """y = x / rms(x) * gain, computed in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.float()
        scale = _inverse_rms(wide, eps)
        unit = wide * scale
        ctx.save_for_backward(unit, scale, gain)
        ctx.source = x.dtype
        out: Tensor = (unit * gain).to(dtype)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        unit, scale, gain = ctx.saved_tensors
        wide = grad.float()
        mixed = wide * unit
        gain_grad = mixed.flatten(0, -2).sum(0)
        pull = torch.matmul(mixed, gain).unsqueeze_(-1).div_(unit.shape[-1])
        out = (wide * gain).addcmul_(unit, pull, value=-1.0).mul_(scale)
        return out.to(ctx.source), gain_grad, None, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def rms_norm(x: Tensor, gain: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Normalise the last axis of `x` and multiply by `gain`; the result has `dtype`."""
    out: Tensor = _RmsNorm.apply(x, gain, eps, dtype)  # type: ignore[no-untyped-call]
    return out


class _NormRotate(torch.autograd.Function):
    """Each head's vector, divided by its rms, times its gain, turned by its position; in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        unit = x.to(torch.float32, copy=True)
        scale = _inverse_rms(unit, eps)
        unit.mul_(scale)
        ctx.save_for_backward(unit, scale, gain, cos, sin)
        ctx.source = x.dtype
        return _turn(unit, cos * gain, sin * gain.roll(gain.shape[-1] // 2, -1)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        unit, scale, gain, cos, sin = ctx.saved_tensors
        out = _turn(grad.float(), cos, -sin)
        mixed = out * unit
        gain_grad = mixed.flatten(0, -3).sum(0)
        pull = mixed.mul_(gain).sum(-1, keepdim=True).div_(gain.shape[-1])
        out.mul_(gain).addcmul_(unit, pull, value=-1.0).mul_(scale)
        return out.to(ctx.source), gain_grad, None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1.0)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


def norm_rotate(x: Tensor, gain: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Normalise each head's vector, multiply it by its gain and embed its position by rotation.

    Args:
        x: (B, T, heads, d).
        gain: (heads, d).
        cos: fp32, of a shape that broadcasts to that of `x`; (T, heads, d) is the fastest.
        sin: like `cos`.
        eps: added to the mean square.

    Returns:
        (B, T, heads, d) in the dtype of `x`; all between is fp32.
    """
    out: Tensor = _NormRotate.apply(x, gain, cos, sin, eps)  # type: ignore[no-untyped-call]
    return out


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        opened = silu(gate)
        ctx.save_for_backward(both, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        both, opened = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        out = torch.empty_like(both)
        gate_grad, up_grad = out.chunk(2, -1)
        torch.mul(opened, grad, out=up_grad)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=gate_grad)
        return out


def swiglu(both: Tensor) -> Tensor:
    """silu(first half) * second half of the last axis."""
    out: Tensor = _SwiGlu.apply(both)  # type: ignore[no-untyped-call]
    return out


BLOCK = 96
"""Queries are taken in blocks that see no key beyond their own end: at 288 tokens a third of the
products are saved."""


class _CausalAttention(torch.autograd.Function):
    """softmax(q k / sqrt(d), causal) v, in blocks of queries; the probabilities are kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, length, heads, size = q.shape
        groups, share = k.shape[2], heads // k.shape[2]
        q = (q * size**-0.5).transpose(1, 2)
        k, v = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        out = q.new_empty(batch, length, heads, size)
        saved = []
        for start in range(0, length, BLOCK):
            end = min(start + BLOCK, length)
            block = q[:, :, start:end].reshape(batch, groups, share * (end - start), size)
            scores = block @ k[:, :, :end].transpose(-1, -2)
            wall = _wall(end - start, scores.dtype, scores.device)
            scores.view(batch, heads, end - start, end)[..., start:] += wall
            weights = torch.softmax(scores, -1)
            mixed = (weights @ v[:, :, :end]).view(batch, heads, end - start, size)
            out[:, start:end] = mixed.transpose(1, 2)
            saved += [block, weights]
        ctx.save_for_backward(k, v, *saved)
        ctx.shape = (batch, length, heads, size)
        return out.view(batch, length, heads * size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        k, v, *saved = ctx.saved_tensors
        batch, length, heads, size = ctx.shape
        groups = k.shape[1]
        grad = grad.view(batch, length, heads, size).transpose(1, 2)
        q_grad = grad.new_empty(batch, length, heads, size)
        k_grad, v_grad = torch.zeros_like(k), torch.zeros_like(v)
        for index, start in enumerate(range(0, length, BLOCK)):
            end = min(start + BLOCK, length)
            block, weights = saved[2 * index], saved[2 * index + 1]
            pulled = grad[:, :, start:end].reshape(batch, groups, -1, size)
            v_grad[:, :, :end] += weights.transpose(-1, -2) @ pulled
            wanted = pulled @ v[:, :, :end].transpose(-1, -2)
            scores = torch._softmax_backward_data(wanted, weights, -1, weights.dtype)
            k_grad[:, :, :end] += scores.transpose(-1, -2) @ block
            moved = (scores @ k[:, :, :end]).view(batch, heads, end - start, size)
            q_grad[:, start:end] = moved.transpose(1, 2)
        return q_grad.mul_(size**-0.5), k_grad.transpose(1, 2), v_grad.transpose(1, 2)


_WALLS: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}


def _wall(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Minus infinity above the diagonal; a few sizes only, so they are kept."""
    key = (size, dtype, device)
    if key not in _WALLS:
        full = torch.full((size, size), float("-inf"), dtype=dtype, device=device)
        _WALLS[key] = full.triu_(1)
    return _WALLS[key]


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal grouped-query attention.

    Args:
        q: (B, T, heads, d).
        k: (B, T, groups, d); `heads` is a multiple of `groups`.
        v: like `k`.

    Returns:
        (B, T, heads * d).
    """
    out: Tensor = _CausalAttention.apply(q, k, v)  # type: ignore[no-untyped-call]
    return out
