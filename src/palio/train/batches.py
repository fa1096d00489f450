"""Examples of similar length share a batch, and every batch costs about the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from palio.train.tokenizer import Encoded

_ATTENTION = 1 / 900
"""Cost of a token at position p is 1 + p * this: measured, attention doubles it at about 900."""
_CHUNK = 1024
"""Examples are sorted by length within chunks of this many; padding stays under 4 %."""


class Example(NamedTuple):
    """Ids up to the last trained one, and the positions (of the id before) that are trained."""

    ids: tuple[int, ...]
    targets: tuple[int, ...]

    @classmethod
    def of(cls, encoded: Encoded, limit: int) -> Example | None:
        """None if nothing is trained or the example is longer than `limit` tokens."""
        targets = tuple(at - 1 for at, trained in enumerate(encoded.trained) if trained and at)
        if not targets or targets[-1] + 2 > limit:
            return None
        return cls(tuple(encoded.ids[: targets[-1] + 2]), targets)


class Batch(NamedTuple):
    """Padded inputs (B, T), flat positions in them that are trained (N), their labels (N)."""

    inputs: Tensor
    keep: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        """Input tokens, padding included."""
        return self.inputs.numel()

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; itself where it is there already."""
        return Batch(*(tensor.to(device) for tensor in self))


def collate(examples: Sequence[Example], pad: int) -> Batch:
    """One padded batch of examples."""
    width = max(len(example.ids) for example in examples) - 1
    inputs = torch.full((len(examples), width), pad, dtype=torch.long)
    keep: list[int] = []
    labels: list[int] = []
    for row, (ids, targets) in enumerate(examples):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        keep.extend(row * width + at for at in targets)
        labels.extend(ids[at + 1] for at in targets)
    return Batch(inputs, torch.tensor(keep), torch.tensor(labels))


def batches(examples: Sequence[Example], budget: int, rng: random.Random) -> Iterator[list[int]]:
    """Endless batches of example indices, every example once an epoch, in a seeded order.

    Args:
        examples: what to draw from.
        rng: decides the order.
        budget: cost of a batch in tokens at position 0, see `_ATTENTION`.

    Raises:
        ValueError: there are none; no epoch of nothing ever ends.
    """
    if not examples:
        raise ValueError("there are no examples to draw batches from")
    order = list(range(len(examples)))
    while True:
        rng.shuffle(order)
        for start in range(0, len(order), _CHUNK):
            chunk = sorted(order[start : start + _CHUNK], key=lambda at: len(examples[at].ids))
            yield from _cut(chunk, examples, budget, rng)


def _cut(
    chunk: list[int], examples: Sequence[Example], budget: int, rng: random.Random
) -> list[list[int]]:
    out: list[list[int]] = []
    batch: list[int] = []
    for at in chunk:
        length = len(examples[at].ids)
        cost = length * (1 + length / 2 * _ATTENTION)
        if batch and (len(batch) + 1) * cost > budget:
            out.append(batch)
            batch = []
        batch.append(at)
    if batch:
        out.append(batch)
    rng.shuffle(out)
    return out
