"""Tokens that are not scored would not have counted: loss and gradient are TRL's over all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from palio.train.rl.grpo import train_grpo
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.trainer import counts_all, lean
from palio.train.settings import TrlSettings
from tests.train_rl.conftest import Scene
from tests.train_rl.test_grpo import graded, quiet, settings, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

AVERAGES: list[dict[str, Any]] = [
    {"entropy_coef": 0.5},
    {"top_entropy_quantile": 0.5},
    {"importance_sampling_level": "sequence"},
    {"off_policy_mask_threshold": 0.1},
]


def trl(**extra: Any) -> TrlSettings:
    return msgspec.structs.replace(settings().trl, extra=extra)


@pytest.mark.parametrize("extra", [{}, {"num_iterations": 2}, *AVERAGES], ids=str)
def test_loss_and_gradient_are_those_over_all_tokens(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, extra: dict[str, Any]
) -> None:
    chosen = settings(trl=trl(**extra))
    roller = graded(scene, chosen)
    trainer = trainer_of(policy, roller, chosen, tmp_path)
    assert counts_all(trainer.args) is (extra in AVERAGES)
    keys = [key for key in roller.keys[:2] for _ in range(4)]
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": key} for key in keys])
    batch["advantages"][:, :3] = 0.0  # a turn of most rollouts
    batch["advantages"][1] = 0.0  # and a whole one
    batch["sampling_per_token_logps"][:, :3] += 1.0  # so far off that a threshold takes notice
    sampled = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert (batch["advantages"][sampled] == 0).any()
    assert (batch["advantages"] < 0).any()
    trainer.current_gradient_accumulation_steps = 1
    parts = list(policy.model.parameters())
    ours = torch.autograd.grad(trainer.compute_loss(trainer.model, batch), parts)
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, batch)
    theirs = torch.autograd.grad(loss, parts)
    assert max(float(each.abs().max()) for each in theirs) > 1e-5, "or all would be the same"
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_an_entropy_bonus_moves_the_weights(scene: Scene, checkpoint: Path, tmp_path: Path) -> None:
    """Our kernels know no gradient of the entropy, and would leave it out without a word."""
    ends = []
    for number, share in enumerate((0.0, 1.0)):
        extra = {"optim": "sgd", "entropy_coef": share}
        chosen = settings(1, trl=msgspec.structs.replace(trl(**extra), max_steps=1), probe=0)
        policy = OwnPolicy(checkpoint, slots=16)
        roller = graded(scene, chosen)
        train_grpo(policy, roller, chosen, tmp_path / str(number), seed=1, report=quiet)
        ends.append(torch.cat([value.flatten() for value in policy.model.state_dict().values()]))
    start = OwnPolicy(checkpoint, slots=16).model.state_dict().values()
    moved = [float((end - torch.cat([v.flatten() for v in start])).abs().max()) for end in ends]
    apart = float((ends[0] - ends[1]).abs().max())
    assert moved[0] > 0
    assert apart > moved[0] / 10, (apart, moved)


def test_a_batch_without_advantages_keeps_its_shortest_row_and_no_padding() -> None:
    ones = torch.ones(2, 4, dtype=torch.long)
    there = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    batch = {
        "prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": there,
        "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 0, 1, 1]]),  # TRL pads it with 1
        "advantages": torch.zeros(2, 4), "old_per_token_logps": torch.full((2, 4), -100.0),
    }  # fmt: skip
    for every, kept in ((False, [[0, 0, 0], [1, 0, 0]]), (True, [[1, 0, 1], [1, 0, 0]])):
        found = lean(batch, every=every)
        assert found["tool_mask"].tolist() == kept
        old = torch.where(torch.tensor(kept) == 1, -100.0, 0.0)
        assert torch.equal(found["old_per_token_logps"], old), "exp(100) is no number"
