"""Many conversations step together over one key-value cache, each with its own length."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from palio.train.model import Qwen3

_GROWTH = 256
"""The cache grows by this many positions; a conversation of the compact world has 200 to 500."""
_EVEN = 8
"""Rows are processed in multiples of this, so that a product takes the same path in memory for one
conversation as for many: sums then come out the same to the last bit."""


_DENSE = 0.5
"""From this share of active rows on, all rows are stepped: gathering a row's cache costs as much as
stepping it."""


class Decoder:
    """A copy of a model, frozen, with a key-value cache of `slots` rows, in fp32.

    Attributes:
        slots: conversations held at once.
        length: positions that a row has room for now.
    """

    def __init__(self, model: Qwen3, slots: int) -> None:
        self.model = copy.deepcopy(model)
        self.model.freeze()
        self.slots = slots
        self.device = self.model.cos.device
        self.length = 0
        self._filled = [0] * slots
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
        width = max(counts)
        for row, start, count in zip(rows, at, counts, strict=True):
            self._filled[row] = start + count
        self._grow(max(max(start + width for start in at), max(self._filled) + 1))
        top = max(rows) + 1
        if width == 1 and top >= _EVEN and len(rows) >= _DENSE * top:
            return self._step_all(list(rows), [each[0] for each in ids], at, top)
        spare = -len(rows) % _EVEN if width == 1 else 0
        inputs = torch.zeros(len(rows), width, dtype=torch.long)
        for row, each in enumerate(ids):
            inputs[row, : len(each)] = torch.tensor(each)
        inputs = inputs.to(self.device)
        index, starts, last = (self._tensor(each) for each in (rows, at, counts))
        last = last - 1
        if spare:
            inputs = torch.cat([inputs, inputs[:1].expand(spare, -1)])
            index, starts, last = (
                torch.cat([each, each[:1].expand(spare)]) for each in (index, starts, last)
            )
        return self.model.logits(self._forward(index, inputs, starts, last)[: len(rows)])

    def _step_all(self, rows: list[int], ids: list[int], at: Sequence[int], top: int) -> Tensor:
        """One id each, with the rows in between stepped too; what they compute is never read."""
        inputs = torch.zeros(top, 1, dtype=torch.long)
        inputs[rows, 0] = torch.tensor(ids)
        starts = torch.tensor(self._filled[:top])
        starts[rows] = torch.tensor(at)
        inputs, starts = inputs.to(self.device), starts.to(self.device)
        states = self._forward(None, inputs, starts, torch.zeros_like(starts))
        return self.model.logits(states[rows])

    def _forward(self, rows: Tensor | None, inputs: Tensor, starts: Tensor, last: Tensor) -> Tensor:
        """Hidden states (B, hidden) at place `last` of each row; `rows` None: the first B rows."""
        positions = starts[:, None] + torch.arange(inputs.shape[1], device=self.device)
        reach = min(self.length, -(-(int(positions.max()) + 1) // 64) * 64)
        # what fills up a row that is read beside a longer one may lie behind the context's end
        known = positions.clamp(max=len(self.model.cos) - 1)
        cos, sin = (table[known][:, :, None] for table in (self.model.cos, self.model.sin))
        seen = torch.arange(reach, device=self.device) <= positions[:, :, None]
        wall = torch.zeros(seen.shape, device=self.device).masked_fill_(~seen, float("-inf"))
        every = torch.arange(len(inputs), device=self.device)
        index = every if rows is None else rows
        x = self.model.model.embed_tokens(inputs)
        for number, block in enumerate(self.model.blocks):
            q, k, v = block.self_attn.project(block.input_layernorm(x, torch.float32), cos, sin)
            keys, values = self._keys[number], self._values[number]
            keys[index[:, None], :, positions] = k
            values[index[:, None], :, positions] = v
            if rows is None:
                keys, values = keys[: len(inputs)], values[: len(inputs)]
            else:
                keys, values = keys[rows], values[rows]
            if number + 1 == len(self._keys):  # nothing after this looks at other places
                x, q, wall = (each[every, last][:, None] for each in (x, q, wall))
            mixed = _mix(q, keys[:, :, :reach], values[:, :, :reach], wall[:, None, None])
            x = block.finish(x, mixed, torch.float32)
        states: Tensor = self.model.model.norm(x[:, 0], torch.float32)
        return states

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def _grow(self, length: int) -> None:
        if length <= self.length:
            return
        self.length = -(-length // _GROWTH) * _GROWTH
        config = self.model.config
        shape = (self.slots, config.kv_heads, self.length, config.head_dim)
        for caches in (self._keys, self._values):
            for number, old in enumerate(caches):
                caches[number] = torch.zeros(shape, device=self.device)
                if old.numel():
                    caches[number][:, :, : old.shape[2]] = old


def _mix(q: Tensor, k: Tensor, v: Tensor, wall: Tensor) -> Tensor:
    """Attention of (B, T, heads, d) queries over (B, groups, reach, d) keys and values."""
    batch, width, heads, size = q.shape
    groups, reach = k.shape[1], k.shape[2]
    share = heads // groups
    q = q.view(batch, width, groups, share, size).permute(0, 2, 3, 1, 4)
    scores = (q * size**-0.5).reshape(batch, groups, share * width, size) @ k.mT
    weights = torch.softmax(scores.view(batch, groups, share, width, reach).add_(wall), -1)
    mixed = weights.view(batch, groups, share * width, reach) @ v
    mixed = mixed.view(batch, groups, share, width, size).permute(0, 3, 1, 2, 4)
    return mixed.reshape(batch, width, heads * size)
