"""What a step leaves out, to be faster, changes neither loss nor gradient, and is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from palio.train.rl.grpo import train_grpo
from palio.train.rl.policy import OwnPolicy
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene
from tests.train_rl.test_grpo import graded, quiet, settings, trainer_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_tokens_without_an_advantage_change_nothing(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings()
    roller = graded(scene, chosen)
    trainer = trainer_of(policy, roller, chosen, tmp_path)
    keys = [key for key in roller.keys[:2] for _ in range(4)]
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": key} for key in keys])
    batch["advantages"][:4] = 0.0
    trainer.current_gradient_accumulation_steps = 1
    parts = list(policy.model.parameters())
    made = []
    for leaning in (True, False):
        if not leaning:
            monkeypatch.setattr("palio.train.rl.trainer.lean", lambda inputs, every: inputs)
        loss = trainer.compute_loss(trainer.model, batch)
        made.append((float(loss.detach()), torch.autograd.grad(loss, parts)))
    assert made[0][0] == pytest.approx(made[1][0], abs=1e-9)
    assert made[0][0] != 0.0
    for one, other in zip(made[0][1], made[1][1], strict=True):
        assert torch.allclose(one, other, atol=1e-8)


def test_distance_may_be_measured_more_rarely(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = settings(3, probe_every=2)
    train_grpo(policy, graded(scene, chosen), chosen, tmp_path, seed=1, report=quiet)
    assert ["kl_to_start" in row for row in read_metrics(tmp_path)] == [True, False, True]


@pytest.mark.usefixtures("bfloat16_products")
def test_a_run_with_bfloat16_products_says_how_far_the_sampler_is(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    trl = msgspec.structs.replace(settings().trl, bf16=True)
    chosen = settings(trl=trl)
    train_grpo(policy, graded(scene, chosen), chosen, tmp_path, seed=1, report=quiet, threads=2)
    rows = read_metrics(tmp_path)
    assert all(1e-6 < row["sampling/logp_gap"] < 0.02 for row in rows)
    assert all(weight.dtype == torch.float32 for weight in policy.model.parameters())
