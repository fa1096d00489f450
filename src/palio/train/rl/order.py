"""A run that was killed in a later epoch meets its prompts in the order in which it would have.

TRL's sampler draws one permutation an epoch from one generator. A resumed run begins with a fresh
generator, so that its second epoch would repeat the order of the first.
"""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.utils import RepeatSampler

from palio.records import ConfigError


class EpochSampler(RepeatSampler):
    """TRL's `RepeatSampler`, whose order an epoch's number decides."""

    @classmethod
    def of(cls, plain: Any) -> EpochSampler:
        """The same sampler; without interruption it gives the same order, too."""
        return cls(
            plain.data_source,
            plain.mini_repeat_count,
            batch_size=plain.batch_size,
            repeat_count=plain.repeat_count,
            shuffle=plain.shuffle,
            seed=plain.seed,
        )

    def set_epoch(self, epoch: int) -> None:
        """What the data loader says before each epoch: draw as if all before it had been drawn."""
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed)
            for _ in range(epoch):
                torch.randperm(self.num_samples, generator=self.generator)


def check_enough(found: int, step: int, what: str, remedy: str) -> None:
    """There is enough for one step: TRL's sampler drops what does not fill one, and so makes none.

    Args:
        found: different keys that can be rolled out.
        step: of which a step takes that many.
        what: they are, for people.
        remedy: what to do about it.

    Raises:
        ConfigError: there are fewer than a step takes.
    """
    if found < step:
        raise ConfigError(
            f"a step takes {step} different {what}, and there are {found}", remedy=remedy
        )
