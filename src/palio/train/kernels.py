"""The four position-wise and attention kernels, with gradients written out by hand.

Same results as the plain formulas (tests compare values and gradients), fewer passes over memory:
at this model size element-wise passes, not products, are what a CPU core spends its time on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu


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
    scale: Tensor = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return scale


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


_ROWS = 64
"""Rows of a product are filled up to a multiple of this. oneDNN compiles a product for each new
shape, 1.5 ms here, and no two batches have the same number of tokens: an update of 2,500 tokens
took 35 ms more than the same update again. Filling up costs 3."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows, low = x.flatten(0, -2), weight.to(x.dtype)
        whole = _filled(rows, _ROWS, 0)
        ctx.save_for_backward(whole, low)
        ctx.shape, ctx.source = x.shape, weight.dtype
        return (whole @ low.T)[: len(rows)].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        whole, low = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad = _filled(rows, _ROWS, 0)
        return (grad @ low)[: len(rows)].view(ctx.shape), (grad.T @ whole).to(ctx.source)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """(..., columns) times the transpose of (rows, columns), in the dtype of `x`."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu":
        return linear(x, weight.to(x.dtype))
    out: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


def _filled(x: Tensor, step: int, axis: int) -> Tensor:
    """Zeros behind the end of an axis, up to a multiple of `step`; `x` itself where none lack."""
    size = x.shape[axis]
    if size % step == 0:
        return x
    shape = list(x.shape)
    shape[axis] = _even(size, step)
    out = x.new_empty(shape)
    out.narrow(axis, 0, size).copy_(x)
    out.narrow(axis, size, shape[axis] - size).zero_()
    return out


def _even(length: int, step: int) -> int:
    return -(-length // step) * step


BLOCK = 96
"""Queries are taken in blocks that see no key beyond their own end: at 288 tokens a third of the
products are saved."""
_QUERIES, _KEYS = 16, 32
"""Queries and keys are filled up to multiples of these, for the sake of few shapes (`_ROWS`) and of
whole vectors: softmax and mask over 285 keys take 1.5 ms, over 288 they take 0.9."""


class _CausalAttention(torch.autograd.Function):
    """softmax(q k / sqrt(d), causal) v, in blocks of queries; the probabilities are kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, length, heads, size = q.shape
        groups = k.shape[2]
        q = _filled((q * size**-0.5).transpose(1, 2), _QUERIES, 2)
        k, v = (_filled(each.transpose(1, 2), _KEYS, 2) for each in (k, v))
        k, v = k.reshape(batch * groups, -1, size), v.reshape(batch * groups, -1, size)
        out = q.new_empty(batch, length, heads, size)
        saved = []
        for start in range(0, length, BLOCK):
            block = q[:, :, start : start + BLOCK]
            rows = block.shape[2]
            block = block.reshape(batch * groups, -1, size)
            seen = _even(start + rows, _KEYS)
            scores = torch.bmm(block, k[:, :seen].mT)
            wall = _wall(rows, seen - start, scores.dtype, scores.device)
            scores.view(batch * heads, rows, seen)[..., start:] += wall
            weights = torch.softmax(scores, -1)
            mixed = torch.bmm(weights, v[:, :seen]).view(batch, heads, rows, size)
            part = out[:, start : start + rows]
            part.copy_(mixed.transpose(1, 2)[:, : part.shape[1]])
            saved += [block, weights]
        ctx.save_for_backward(k, v, *saved)
        ctx.shape = (batch, length, heads, size)
        return out.view(batch, length, heads * size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        k, v, *saved = ctx.saved_tensors
        batch, length, heads, size = ctx.shape
        grad = _filled(grad.view(ctx.shape).transpose(1, 2), _QUERIES, 2)
        q_grad = grad.new_empty(ctx.shape)
        k_grad, v_grad = torch.zeros_like(k), torch.zeros_like(v)
        for index, start in enumerate(range(0, length, BLOCK)):
            block, weights = saved[2 * index], saved[2 * index + 1]
            seen = weights.shape[2]
            pulled = grad[:, :, start : start + BLOCK].reshape(block.shape)
            v_grad[:, :seen].baddbmm_(weights.mT, pulled)
            wanted = torch.bmm(pulled, v[:, :seen].mT)
            scores = torch._softmax_backward_data(wanted, weights, -1, weights.dtype)
            k_grad[:, :seen].baddbmm_(scores.mT, block)
            moved = torch.bmm(scores, k[:, :seen]).view(batch, heads, -1, size)
            part = q_grad[:, start : start + moved.shape[2]]
            part.copy_(moved.transpose(1, 2)[:, : part.shape[1]])
        k_grad, v_grad = (
            each.view(batch, -1, *each.shape[1:])[:, :, :length].transpose(1, 2)
            for each in (k_grad, v_grad)
        )
        return q_grad.mul_(size**-0.5), k_grad, v_grad


_WALLS: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}


def _wall(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Minus infinity above the diagonal; a few sizes only, so they are kept."""
    key = (rows, columns, dtype, device)
    if key not in _WALLS:
        full = torch.full((rows, columns), float("-inf"), dtype=dtype, device=device)
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
