"""One loop for every stage: seeded, counted in tokens, resumable, and never quietly wrong."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from palio.records import IntegrityError, Record
from palio.train.batches import Batch, Example, batches, collate
from palio.train.model import Qwen3
from palio.train.optimiser import Optimiser, OptimiserConfig
from palio.train.team import Team

LOSS_TOKENS = "loss_tokens"
"""Count of a stage of this loop: the tokens whose loss it trained on, every showing of one."""


class StageConfig(Record, frozen=True, omit_defaults=False):
    """How one stage trains.

    Attributes:
        tokens: input tokens to train on, padding included: the length of the stage.
        batch: cost of one part of a batch, in tokens (`batches`).
        warmup: share of the stage in which the rates rise.
        decay: share of the stage in which they fall.
        floor: rate at the end, as a share of the peak.
        minutes: time limit. Where it would be passed the schedule is shortened so that it ends in
            time; the manifest then says so, since the result depends on the machine. 0: none.
        seed: order of the examples.
    """

    tokens: int
    batch: int = 1500
    warmup: float = 0.01
    decay: float = 0.4
    floor: float = 0.02
    minutes: float = 0.0
    seed: int = 0
    optimiser: OptimiserConfig = OptimiserConfig()


class Point(Record, frozen=True, omit_defaults=False):
    """One point of a learning curve; `loss` is the mean since the last point, in nats a token."""

    stage: str
    step: int
    tokens: int
    loss: float
    rate: float
    norm: float
    tokens_per_s: float
    seconds: float


class Mixture:
    """Draws each part of a batch from one of several sources, by weight.

    Args:
        sources: (name, examples, weight); weights need not sum to 1.
        budget: cost of a part, see `batches`.
        seed: decides order and draws.

    Attributes:
        drawn: parts drawn so far.
        trained: trained tokens in them. A resumed run draws again what it had drawn, so that these
            are those of the whole run.
    """

    def __init__(
        self, sources: Sequence[tuple[str, Sequence[Example], float]], budget: int, seed: int
    ) -> None:
        self._rng = random.Random(f"mixture-{seed}")
        self._examples = [examples for _, examples, _ in sources]
        self._weights = [weight for _, _, weight in sources]
        self._streams: list[Iterator[list[int]]] = [
            batches(examples, budget, random.Random(f"{name}-{seed}"))
            for name, examples, _ in sources
        ]
        self.drawn = self.trained = 0

    def _next(self) -> list[Example]:
        which = self._rng.choices(range(len(self._weights)), self._weights)[0]
        self.drawn += 1
        part = [self._examples[which][at] for at in next(self._streams[which])]
        self.trained += sum(len(example.targets) for example in part)
        return part

    def draw(self, pad: int) -> Batch:
        """The next part of a batch."""
        return collate(self._next(), pad)

    def skip_to(self, drawn: int) -> None:
        """Draw and drop, so that a resumed run goes on where it stopped."""
        while self.drawn < drawn:
            self._next()


class Progress:
    """Where a stage stands; saved with every periodic checkpoint."""

    def __init__(self) -> None:
        self.step = 0
        self.tokens = 0
        self.drawn = 0
        self.seconds = 0.0
        self.shortened = False

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of `state`."""
        vars(self).update(state)


def rate_at(share: float, config: StageConfig) -> float:
    """Rate, as a share of its peak, when `share` of the stage is done."""
    rising = min(1.0, (share + 1e-3) / config.warmup) if config.warmup else 1.0
    falling = min(1.0, (1.0 - share) / config.decay) if config.decay else 1.0
    return max(config.floor, min(rising, falling))


class Stage:
    """One stage over one model.

    Args:
        name: stands in the learning curve.
        model: trained in place.
        optimiser: of the model.
        mixture: where batches come from.
        config: length, rates and limits.
        team: threads that work on the parts of a batch.
        parts: parts of a batch; the result does not depend on how many threads there are.
        pad: id that fills rows up.
        report: called with a `Point` about every `every` seconds, and at the end.
        save: called with the progress about every `save_every` seconds.
        clock: seconds; injected.
        every: seconds between two points.
        save_every: seconds between two saves.
    """

    def __init__(
        self,
        name: str,
        model: Qwen3,
        optimiser: Optimiser,
        mixture: Mixture,
        config: StageConfig,
        *,
        team: Team,
        pad: int,
        report: Callable[[Point], None],
        save: Callable[[Progress], None],
        parts: int = 2,
        clock: Callable[[], float] = time.monotonic,
        every: float = 5.0,
        save_every: float = 60.0,
    ) -> None:
        self.name, self.model, self.optimiser, self.config = name, model, optimiser, config
        self.mixture, self.team, self.parts, self.pad = mixture, team, parts, pad
        self.report, self.save, self.clock = report, save, clock
        self.every, self.save_every = every, save_every
        self.progress = Progress()
        self._weights = list(model.parameters())
        self._device = self._weights[0].device

    def run(self) -> Progress:
        """Train to the end of the stage.

        Raises:
            IntegrityError: the loss or the gradient is not a number; the weights are those of the
                last good step, and the last periodic checkpoint is untouched.
        """
        now = self.progress
        self.mixture.skip_to(now.drawn)
        started = self.clock() - now.seconds
        losses: list[float] = []
        shown, seen, saved = now.seconds, now.tokens, now.seconds
        while (share := self._share()) < 1.0:
            parts = [self.mixture.draw(self.pad) for _ in range(self.parts)]
            rate = rate_at(share, self.config)
            loss, norm = self._step(parts, rate)
            losses.append(loss)
            now.step += 1
            now.tokens += sum(part.tokens for part in parts)
            now.drawn = self.mixture.drawn
            now.seconds = self.clock() - started
            if now.seconds - shown >= self.every or self._share() >= 1.0:
                speed = (now.tokens - seen) / max(now.seconds - shown, 1e-9)
                self.report(self._point(sum(losses) / len(losses), rate, norm, speed))
                losses, shown, seen = [], now.seconds, now.tokens
            if now.seconds - saved >= self.save_every:
                saved = now.seconds
                self.save(now)
        return now

    def _share(self) -> float:
        """How much of the stage is done; by the clock where that is further than by tokens."""
        by_tokens = self.progress.tokens / max(1, self.config.tokens)
        if not self.config.minutes:
            return by_tokens
        by_clock = self.progress.seconds / (self.config.minutes * 60)
        if by_clock > max(by_tokens, 0.1):
            self.progress.shortened = True
            return by_clock
        return by_tokens

    def _point(self, loss: float, rate: float, norm: float, speed: float) -> Point:
        now = self.progress
        return Point(
            stage=self.name,
            step=now.step,
            tokens=now.tokens,
            loss=round(loss, 5),
            rate=round(rate, 5),
            norm=round(norm, 4),
            tokens_per_s=round(speed, 1),
            seconds=round(now.seconds, 2),
        )

    def _step(self, parts: Sequence[Batch], rate: float) -> tuple[float, float]:
        """One update; the loss before it and the norm of its gradient."""
        total = sum(len(part.labels) for part in parts)
        done = self.team.run([partial(self._gradients, part, total) for part in parts])
        loss = sum(value for value, _ in done)
        gradients = list(done[0][1])
        for _, more in done[1:]:
            torch._foreach_add_(gradients, list(more))
        norm = self.optimiser.step(gradients, rate, self.team.run) if math.isfinite(loss) else loss
        if not math.isfinite(norm):
            raise IntegrityError(
                f"the loss of stage {self.name!r} is not a number at step {self.progress.step}",
                remedy="lower the rates in the recipe; the last saved checkpoint is still good",
            )
        return loss, norm

    def _gradients(self, part: Batch, total: int) -> tuple[float, tuple[Tensor, ...]]:
        """This part's share of the mean loss, and its gradients."""
        part = part.to(self._device)
        states = self.model.hidden(part.inputs, part.keep, low=True)
        logits = self.model.logits(states).float()
        loss = cross_entropy(logits, part.labels, reduction="sum") / total
        return float(loss.detach()), torch.autograd.grad(loss, self._weights)
