"""Many conversations step together over one key-value cache, each with its own length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from palio.train.model import Block, Qwen3

_GROWTH = 256
"""The cache grows by this many positions; a conversation of the compact world has 200 to 500."""
_EVEN = 8
"""Rows are processed in multiples of this, so that a product takes the same path in memory for one
conversation as for many: sums then come out the same to the last bit."""


class Decoder:
    """A model with a key-value cache of `slots` rows, in fp32.

    Attributes:
        slots: conversations held at once.
        length: positions that a row has room for now.
    """

    def __init__(self, model: Qwen3, slots: int) -> None:
        self.model = model
        self.slots = slots
        self.length = 0
        self._keys: list[Tensor] = [torch.empty(0) for _ in model.blocks]
        self._values: list[Tensor] = [torch.empty(0) for _ in model.blocks]
        self._grow(2 * _GROWTH)

    @torch.no_grad()
    def advance(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], at: Sequence[int]
    ) -> Tensor:
        """Feed ids to some rows.

        Args:
            rows: different row numbers.
            ids: what each row reads next, at least one id each.
            at: how many positions of each row are in use; later ones are overwritten.

        Returns:
            (len(rows), vocabulary) logits after the last id of each row.
        """
        counts = [len(each) for each in ids]
        width, spare = max(counts), -len(rows) % _EVEN if max(counts) == 1 else 0
        self._grow(max(start + width for start in at))
        inputs = torch.zeros(len(rows), width, dtype=torch.long)
        for row, each in enumerate(ids):
            inputs[row, : len(each)] = torch.tensor(each)
        index, starts = torch.tensor(rows), torch.tensor(at)
        if spare:
            inputs = torch.cat([inputs, inputs[:1].expand(spare, -1)])
            index = torch.cat([index, index[:1].expand(spare)])
            starts = torch.cat([starts, starts[:1].expand(spare)])
        states = self._forward(index, inputs, starts)
        last = states[torch.arange(len(rows)), torch.tensor(counts) - 1]
        return self.model.logits(last)

    def _forward(self, rows: Tensor, inputs: Tensor, starts: Tensor) -> Tensor:
        width = inputs.shape[1]
        positions = starts[:, None] + torch.arange(width)
        reach = min(self.length, -(-(int(positions.max()) + 1) // 64) * 64)
        cos = self.model.cos[positions][:, :, None]
        sin = self.model.sin[positions][:, :, None]
        seen = torch.arange(reach) <= positions[:, :, None]
        wall = torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
        x = self.model.model.embed_tokens(inputs)
        for number, layer in enumerate(self.model.blocks):
            x = self._layer(number, layer, x, cos, sin, rows, positions, reach, wall)
        states: Tensor = self.model.model.norm(x, torch.float32)
        return states

    def _layer(
        self,
        number: int,
        layer: Block,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        rows: Tensor,
        positions: Tensor,
        reach: int,
        wall: Tensor,
    ) -> Tensor:
        config = self.model.config
        batch, width = x.shape[:2]
        groups, share, size = config.kv_heads, config.heads // config.kv_heads, config.head_dim
        q, k, v = layer.self_attn.project(layer.input_layernorm(x, torch.float32), cos, sin)
        keys, values = self._keys[number], self._values[number]
        keys[rows[:, None], positions] = k
        values[rows[:, None], positions] = v
        held_k = keys[rows, :reach].permute(0, 2, 3, 1)
        held_v = values[rows, :reach].transpose(1, 2)
        q = q.view(batch, width, groups, share, size).permute(0, 2, 3, 1, 4)
        scores = q.reshape(batch, groups, share * width, size) @ held_k
        scores = scores.view(batch, groups, share, width, reach).mul_(size**-0.5)
        weights = torch.softmax(scores.add_(wall[:, None, None]), -1)
        mixed = weights.view(batch, groups, share * width, reach) @ held_v
        mixed = mixed.view(batch, groups, share, width, size).permute(0, 3, 1, 2, 4)
        return layer.finish(x, mixed.reshape(batch, width, groups * share * size), torch.float32)

    def _grow(self, length: int) -> None:
        if length <= self.length:
            return
        self.length = -(-length // _GROWTH) * _GROWTH
        config = self.model.config
        shape = (self.slots, self.length, config.kv_heads, config.head_dim)
        for caches in (self._keys, self._values):
            for number, old in enumerate(caches):
                caches[number] = torch.zeros(shape)
                if old.numel():
                    caches[number][:, : old.shape[1]] = old
