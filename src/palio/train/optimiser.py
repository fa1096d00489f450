"""Muon on the matrices, AdamW on embeddings and gains, each under one schedule.

Muon (Jordan et al., 2024): the momentum of a matrix is replaced by the nearest orthogonal matrix
before it is applied. Matrices of one shape are stepped as one stack: 28 matrices of this model in
8 stacks instead of 28 calls (`torch.optim.Muon` takes them one by one), and the stacks are shared
out over the worker threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palio.records import Record
from palio.train.precision import product_type

Spread = Callable[[Sequence[Callable[[], None]]], object]
"""Runs pieces of work, possibly at the same time; `in_turn` is the simplest one."""

_POLAR = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Coefficients of the odd polynomials that drive singular values to 1 (Amsel et al., 2025)."""


class OptimiserConfig(Record, frozen=True, omit_defaults=False, forbid_unknown_fields=True):
    """Learning rates at their peak, and the rest.

    Attributes:
        matrix_rate: of Muon; an update of a (rows, columns) matrix has about the length of
            rate * sqrt(rows) * max(1, rows / columns) ** 0.5.
        other_rate: of AdamW.
        weight_decay: of matrices and embeddings, decoupled: an update takes this share, times the
            rate of their optimiser, off each weight. Gains of norms never decay. Embeddings do, as
            with the trainers of transformers and nanoGPT; here they are the head's matrix, too.
        clip: largest norm of the whole gradient; 0: no limit.
    """

    matrix_rate: float = 0.02
    matrix_momentum: float = 0.95
    other_rate: float = 3e-3
    other_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 1.0


def in_turn(work: Sequence[Callable[[], None]]) -> None:
    """The spread that needs no thread."""
    for piece in work:
        piece()


def orthogonal(batch: Tensor) -> Tensor:
    """The nearest orthogonal matrices of a batch (N, rows, columns), in bf16 where that is fast.

    Tall matrices are multiplied from the other side, not turned over: that took a tenth of a step.
    """
    x = batch.to(product_type(batch.device), copy=True)
    x /= x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7
    tall = x.shape[-2] > x.shape[-1]
    other, side = torch.empty_like(x), min(x.shape[-2:])
    gram, factor = x.new_empty(2, len(x), side, side)
    for a, b, c in _POLAR:
        torch.bmm(*((x.mT, x) if tall else (x, x.mT)), out=gram)
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=factor)
        torch.baddbmm(x, *((x, factor) if tall else (factor, x)), beta=a, out=other)
        x, other = other, x
    return x


class _Stack(NamedTuple):
    """Matrices of one shape: where they stand among the weights, and their momentum.

    Attributes:
        momentum: (N, rows, columns).
    """

    places: list[int]
    momentum: Tensor


class Optimiser:
    """Both optimisers over one model; `step` takes gradients, not `.grad`."""

    def __init__(self, model: nn.Module, config: OptimiserConfig) -> None:
        self.config = config
        self._weights = list(model.parameters())
        self._others: list[int] = []
        shapes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for index, (name, weight) in enumerate(model.named_parameters()):
            if weight.dim() == 2 and "embed" not in name:
                rows, columns = weight.shape
                shapes[rows, columns].append(index)
            else:
                self._others.append(index)
        self._stacks = [
            _Stack(half, torch.stack([torch.zeros_like(self._weights[i]) for i in half]))
            for places in shapes.values()
            for half in _halves(places)
        ]
        self._adam = torch.optim.AdamW(
            [self._weights[i] for i in self._others],
            lr=config.other_rate,
            betas=config.other_betas,
            weight_decay=0.0,  # `_shrink`: gains stand in the same group
            fused=True,
        )

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float, spread: Spread = in_turn) -> float:
        """One update; `rate` in [0, 1] scales both peak rates.

        Returns:
            The norm of the whole gradient before clipping, NaN or infinite if it is broken; then
            nothing is changed.
        """
        norms = torch._foreach_norm(list(gradients))
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if norm != norm or norm == float("inf"):
            return norm
        if self.config.clip and norm > self.config.clip:
            torch._foreach_mul_(list(gradients), self.config.clip / norm)
        stacks = [partial(self._step_stack, stack, gradients, rate) for stack in self._stacks]
        spread([partial(self._step_others, gradients, rate), *stacks])
        return norm

    def _step_others(self, gradients: Sequence[Tensor], rate: float) -> None:
        for index in self._others:
            self._weights[index].grad = gradients[index]
        for group in self._adam.param_groups:
            group["lr"] = self.config.other_rate * rate
        embeddings = [place for place in self._others if self._weights[place].dim() > 1]
        self._shrink(embeddings, self.config.other_rate * rate)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _step_stack(self, stack: _Stack, gradients: Sequence[Tensor], rate: float) -> None:
        ahead = torch.stack([gradients[place] for place in stack.places])
        stack.momentum.mul_(self.config.matrix_momentum).add_(ahead)
        ahead.add_(stack.momentum, alpha=self.config.matrix_momentum)
        rows, columns = ahead.shape[1:]
        length = self.config.matrix_rate * rate * max(1.0, rows / columns) ** 0.5
        self._shrink(stack.places, self.config.matrix_rate * rate)
        for place, update in zip(stack.places, orthogonal(ahead), strict=True):
            self._weights[place].add_(update, alpha=-length)

    @torch.no_grad()
    def _shrink(self, places: Sequence[int], rate: float) -> None:
        """Decay, before the update and apart from it (Loshchilov and Hutter, 2019)."""
        if self.config.weight_decay:
            for place in places:
                self._weights[place].mul_(1.0 - rate * self.config.weight_decay)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"momentum": self._momentum(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        held = self._momentum()
        for place, momentum in state["momentum"].items():
            held[place].copy_(momentum)
        self._adam.load_state_dict(state["adam"])
        for group in self._adam.param_groups:
            group["weight_decay"] = 0.0  # a state of before has the recipe's

    def _momentum(self) -> dict[int, Tensor]:
        return {
            place: momentum
            for stack in self._stacks
            for place, momentum in zip(stack.places, stack.momentum, strict=True)
        }


def _halves(places: list[int]) -> Iterable[list[int]]:
    middle = (len(places) + 1) // 2
    return (half for half in (places[:middle], places[middle:]) if half)
