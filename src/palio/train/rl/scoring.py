"""TRL's fused head over palio's own kernels: the same log-probabilities for less CPU time.

TRL's trainers ask a model for the log-probability of each label (`fused_lm_head=True`). Here a
model of ours answers that from the very same weights, but from rows that are cut to their own
labels, sorted by length and taken a few at a time; each such piece is worked on by one thread,
forward and backward.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from trl.trainer.utils import FusedCausalLMOutput

from palio.train.batches import Example, collate
from palio.train.model import ModelConfig, Qwen3
from palio.train.team import Team

_IGNORED = -100
_BUDGET = 1500
"""Tokens of a piece, padding included; a batch of the SFT loop has as many in each part."""


class _Piece(NamedTuple):
    """A few rows of similar length.

    Attributes:
        examples: their ids, and where in them is scored.
        places: flat places of the scores in the (B, T - 1) output, in the examples' order.
    """

    examples: list[Example]
    places: Tensor


class _Scored(NamedTuple):
    """(N,) fields of the scored places; `log_probs` may carry a graph."""

    log_probs: Tensor
    entropy: Tensor
    mean_logits: Tensor


class _Work(NamedTuple):
    """How pieces are scored."""

    twin: Qwen3
    weights: tuple[nn.Parameter, ...]
    temperature: float
    low: bool
    team: Team

    def score(self, piece: _Piece, *, graph: bool) -> _Scored:
        """One piece, in the thread that calls."""
        batch = collate(piece.examples, 0)
        with torch.autocast("cpu", enabled=False):
            with torch.set_grad_enabled(graph):
                states = self.twin.hidden(batch.inputs, batch.keep, low=self.low)
                # the head in fp32: bfloat16 logits are off by up to 0.06, which KTO sums over a row
                logits = self.twin.logits(states.float())
                if self.temperature != 1.0:
                    logits = logits / self.temperature
                scores = torch.log_softmax(logits, -1)
                log_probs = scores.gather(1, batch.labels[:, None])[:, 0]
            with torch.no_grad():
                entropy = -torch.einsum("nv,nv->n", scores.exp(), scores)
                return _Scored(log_probs, entropy, logits.mean(-1))

    def pull(self, scored: _Scored, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the weights from those of one piece's log-probabilities."""
        return torch.autograd.grad(scored.log_probs, self.weights, gradient)


class _Scores(torch.autograd.Function):
    """All pieces: their log-probabilities, entropies and mean logits, one after the other."""

    @staticmethod
    def forward(ctx: Any, work: _Work, pieces: Sequence[_Piece], *weights: Tensor) -> Any:
        del weights  # named so that their gradients are asked for
        done = work.team.run([partial(work.score, piece, graph=True) for piece in pieces])
        ctx.work, ctx.done = work, done
        joined = [torch.cat([field.detach() for field in fields]) for fields in zip(*done)]  # noqa: B905
        ctx.mark_non_differentiable(*joined[1:])
        return tuple(joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        work, done = ctx.work, ctx.done
        parts = torch.split(gradients[0], [len(scored.log_probs) for scored in done])
        pulls = [partial(work.pull, *pair) for pair in zip(done, parts, strict=True)]
        found = work.team.run(pulls)
        ctx.done = None
        total = list(found[0])
        for more in found[1:]:
            torch._foreach_add_(total, list(more))
        return None, None, *total


@contextmanager
def own_kernels(
    models: Sequence[nn.Module],
    config: ModelConfig,
    *,
    temperature: float = 1.0,
    low: bool = False,
    threads: int = 1,
) -> Iterator[None]:
    """While open, models of ours score labels with our kernels; other calls go where they went.

    Args:
        models: transformers' Qwen3 of this shape on a CPU, with TRL's fused head, no adapter.
        config: the shape.
        temperature: logits are divided by it.
        low: products in bfloat16, but for the head; weights and sums stay fp32.
        threads: pieces that are worked on at the same time.
    """
    team = Team(threads)
    before = [model.forward for model in models]
    try:
        with team:
            for model, old in zip(models, before, strict=True):
                twin = twin_of(model, config)
                work = _Work(twin, tuple(twin.parameters()), temperature, low, team)
                model.forward = types.MethodType(_forward(work, old), model)
            yield
    finally:
        for model, old in zip(models, before, strict=True):
            model.forward = old


def twin_of(model: nn.Module, config: ModelConfig) -> Qwen3:
    """Our architecture over another model's own parameters: not copies, the same objects."""
    twin = Qwen3(config)
    theirs = dict(model.named_parameters())
    for name, _ in list(twin.named_parameters()):
        path, _, last = name.rpartition(".")
        setattr(twin.get_submodule(path), last, theirs[name])
    return twin


def _forward(work: _Work, old: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        self: nn.Module,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        fused_lm_head: bool = False,
        use_cache: bool = False,
        **more: Any,
    ) -> Any:
        del self
        if fused_lm_head and not more and input_ids is not None and labels is not None:
            pieces = pieces_of(input_ids, attention_mask, labels) if _is_near(labels) else None
            if pieces:
                return _output(work, pieces, labels)
        told: dict[str, Any] = {"labels": labels} if labels is not None else {}
        told |= {"fused_lm_head": True} if fused_lm_head else {}
        return old(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache, **told, **more
        )

    return forward


def _is_near(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def pieces_of(ids: Tensor, mask: Tensor | None, labels: Tensor) -> list[_Piece] | None:
    """Rows without their padding, cut behind their last label, sorted by length and grouped.

    Args:
        ids: (B, T).
        mask: (B, T), 1 where there is a token; padded on either side, or both.
        labels: (B, T), -100 where nothing is scored.

    Returns:
        [] where nothing is scored; None where a row has padding inside.
    """
    real = torch.ones_like(ids) if mask is None else mask
    first = real.argmax(1)
    width = ids.shape[1]
    held = torch.arange(width) >= first[:, None]
    held &= torch.arange(width) < (first + real.sum(1))[:, None]
    if not torch.equal(held, real.bool()):
        return None
    rows: list[tuple[Example, Tensor]] = []
    for row, start in enumerate(first.tolist()):
        at = (labels[row] != _IGNORED).nonzero()[:, 0]
        at = at[at > start]
        if len(at):
            end = int(at[-1]) + 1
            example = Example(tuple(ids[row, start:end].tolist()), tuple((at - 1 - start).tolist()))
            rows.append((example, row * (width - 1) + at - 1))
    rows.sort(key=lambda pair: len(pair[0].ids))
    pieces: list[_Piece] = []
    while rows:
        count = max(1, sum((n + 1) * len(pair[0].ids) <= _BUDGET for n, pair in enumerate(rows)))
        part, rows = rows[:count], rows[count:]
        pieces.append(_Piece([example for example, _ in part], torch.cat([at for _, at in part])))
    return pieces


def _output(work: _Work, pieces: Sequence[_Piece], labels: Tensor) -> FusedCausalLMOutput:
    if torch.is_grad_enabled():
        flat = _Scores.apply(work, pieces, *work.weights)  # type: ignore[no-untyped-call]
    else:
        done = work.team.run([partial(work.score, piece, graph=False) for piece in pieces])
        flat = [torch.cat(fields) for fields in zip(*done)]  # noqa: B905
    mask = labels[:, 1:] != _IGNORED
    places = torch.cat([piece.places for piece in pieces])
    log_probs, entropy, mean_logits = (
        torch.zeros(mask.numel()).index_put((places,), values).view(mask.shape) for values in flat
    )
    return FusedCausalLMOutput(
        loss=-log_probs.sum() / mask.sum().clamp(min=1),
        log_probs=log_probs,
        entropy=entropy,
        mean_logits=mean_logits,
        label_mask=mask,
    )
