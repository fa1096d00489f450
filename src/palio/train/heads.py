"""Attention heads that can copy from the first step, written into otherwise random weights.

Copying needs two layers to agree: one that tells each position what stood before it, one that
looks for the place where the present token stood before. Neither is worth anything without the
other, so gradient descent searches long for the pair: over 1 M tokens here, a quarter of the
budget. In the manner of mimetic initialisation (Trockman and Kolter, 2023) the pair is laid out at
the start; every weight is trained from there on.

The residual stream starts divided: tokens lie in half of it, what stood one and two back is written
into a quarter each, and one direction is the same for every token, so that a head can have a fixed
query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palio.train.model import Attention, Qwen3

SCALE = 0.3
"""Size of the token embeddings in the stream at the start."""
_SHARP = 4.0
"""Gain of the fast-turning dimensions of layer 0, where position is read."""
_FAST = 3
"""Pairs of dimensions whose angle turns by more than 0.4 a token; they tell neighbours apart."""
_QUIET = 0.1
"""What all other blocks add to the stream at the start, as a share of the usual."""


def lay_out_heads(model: Qwen3, seed: int) -> None:
    """Write the heads into layers 0 and 1; does nothing to a model that has no room for them."""
    config = model.config
    size, hidden = config.head_dim, config.hidden_size
    if config.layers < 2 or config.heads < 2 * config.kv_heads or 4 * size > hidden:
        return
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(hidden, hidden, generator=generator)
    wide[:, 0] = torch.sign(wide[:, 0])
    mark, basis = wide[:, 0].clone(), torch.linalg.qr(wide).Q.T
    tokens, backs = basis[1 : hidden - 2 * size], [basis[-2 * size : -size], basis[-size:]]
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        noise = torch.randn(len(embedding), len(tokens), generator=generator)
        embedding[:] = SCALE * (mark + noise @ tokens * (hidden / len(tokens)) ** 0.5)
        model.model.norm.weight[:] = 8.0 / (SCALE * hidden)
        for layer in model.blocks:
            layer.self_attn.o_proj.weight *= _QUIET
            layer.mlp.down_proj.weight *= _QUIET
        _look_back(model.blocks[0].self_attn, mark, tokens[:size], backs)
        _induction(model.blocks[1].self_attn, tokens, backs)


def _look_back(attention: Attention, mark: Tensor, read: Tensor, backs: list[Tensor]) -> None:
    """The first two heads attend one and two tokens back and write what stood there."""
    config = attention.config
    size, half = config.head_dim, config.head_dim // 2
    turns = config.rope_theta ** (-torch.arange(0, size, 2).float() / size)
    for start in (0, half):
        attention.q_norm.weight[start : start + _FAST] = _SHARP
    still = torch.zeros(size)
    still[:_FAST] = 1.0
    for head, back in enumerate(backs):
        rows = slice(head * size, (head + 1) * size)
        turned = torch.cat([still[:half] * torch.cos(turns * (head + 1)), still[half:]])
        turned[half:] = -still[:half] * torch.sin(turns * (head + 1))
        attention.q_proj.weight[rows] = _along(turned, mark)
        attention.o_proj.weight[:, rows] = SCALE * back.T
    attention.k_proj.weight[:size] = _along(still, mark)
    attention.v_proj.weight[:size] = read


def _induction(attention: Attention, tokens: Tensor, backs: list[Tensor]) -> None:
    """Heads that look where the present token stood before, and copy what followed it there.

    The first group's keys say what stood one and two back: one head asks for the present and the
    last token there. The second group's keys say only what stood one back: two heads ask for the
    present token. Between them the groups copy the whole token.
    """
    config = attention.config
    size, share = config.head_dim, config.heads // config.kv_heads
    even = (torch.arange(size) % (size // 2) % 2 == 0)[:, None]
    present = tokens[:size]
    queries = [torch.where(even, present, backs[0])] + [present] * (config.heads - 1)
    keys = [torch.where(even, backs[0], backs[1])] + [backs[0]] * (config.kv_heads - 1)
    for group, key in enumerate(keys):
        rows = slice(group * size, (group + 1) * size)
        copied = tokens[:size] if group == 0 else tokens[-size:]
        attention.k_proj.weight[rows] = key
        attention.v_proj.weight[rows] = copied
        for head in range(group * share, (group + 1) * share):
            columns = slice(head * size, (head + 1) * size)
            attention.q_proj.weight[columns] = queries[head]
            attention.o_proj.weight[:, columns] = 2 * SCALE * copied.T


def _along(vector: Tensor, mark: Tensor) -> Tensor:
    """The matrix that answers a multiple of `vector` to whatever contains `mark`."""
    return 8.0 * torch.outer(vector, mark) / len(mark)
