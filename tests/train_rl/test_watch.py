"""A policy that stops calling is stopped with its step, whatever parts it has, and after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import TrainerControl, TrainerState

from palio.train.rl.grpo import train_grpo
from palio.train.rl.hooks import last_state
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Sampler
from palio.train.rl.trainer import StepGrpoTrainer
from palio.train.rl.watch import CallWatch
from palio.train.seen import Witness, read_seen
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene
from tests.train_rl.test_grpo import Graded, Killed, graded, quiet, settings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Fading(Graded):
    """Four calls a rollout in the first step of a run, and then one."""

    begun = False

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        made = super().roll(keys, seeds, sampler)
        calls, self.begun = 1 if self.begun else 4, True
        audits = [msgspec.structs.replace(r.audit, calls=calls) for r in made if r.audit]
        return [replace(r, audit=a) for r, a in zip(made, audits, strict=True)]


def run(
    scene: Scene, start: Path, out: Path, report: Any = quiet, parts: int = 1, **trl: Any
) -> StepGrpoTrainer:
    """A run whose calls fade, in batches of `parts` parts; one that goes on has faded already."""
    sizes = {"per_device_train_batch_size": 8 // parts, "gradient_accumulation_steps": parts}
    plain = {"max_steps": 6, "save_steps": 1, **sizes, **trl}
    chosen = settings(watch=0.5, trl=msgspec.structs.replace(settings().trl, **plain), probe=0)
    fading = Fading(graded(scene, chosen).inner)
    fading.begun = last_state(out) is not None
    out.mkdir(exist_ok=True)
    policy = OwnPolicy(start, slots=16)
    return train_grpo(policy, Witness(fading, out), chosen, out, seed=1, report=report)


def test_the_step_that_decides_is_whole_however_it_is_split(
    scene: Scene, checkpoint: Path, tmp_path: Path
) -> None:
    ends = []
    for parts in (1, 2):
        out = tmp_path / str(parts)
        trainer = run(scene, checkpoint, out, parts=parts)
        assert "calls a rollout fell from 4.00 to 1.00 at step 3" in trainer.watch.stopped
        assert trainer.state.global_step == 3
        rows = read_metrics(out)
        assert [row["step"] for row in rows] == [1, 2, 3]
        seen = read_seen(out)
        assert seen is not None
        assert len(seen) == 3 * 8, "what was rolled out was trained on"
        weights = torch.cat([value.flatten() for value in trainer.model.state_dict().values()])
        ends.append((weights, [row["reward"] for row in rows], [each.row for each in seen]))
    assert ends[0][1:] == ends[1][1:]
    assert torch.allclose(ends[0][0], ends[1][0], atol=1e-4)


@pytest.mark.parametrize("state", [1, 2, 3])
def test_a_run_that_was_killed_ends_where_it_would_have(
    scene: Scene, checkpoint: Path, tmp_path: Path, state: int
) -> None:
    """Killed before the two low steps, between them, or when the second one's state was saved."""

    def killed(share: float, note: str) -> None:
        if share > state / 6:
            raise Killed

    out = tmp_path / "run"
    with pytest.raises(Killed) if state < 3 else nullcontext():
        run(scene, checkpoint, out, killed)
    assert str(last_state(out)).endswith(f"checkpoint-{state}")
    trainer = run(scene, checkpoint, out)
    assert trainer.state.global_step == 3
    assert "at step 3" in trainer.watch.stopped
    assert [row["step"] for row in read_metrics(out)] == [1, 2, 3]


def test_a_state_without_a_watch_is_gone_on_from() -> None:
    """It stands in the next states, to which transformers adds only what it finds there."""
    watch, state, control = CallWatch(0.5), TrainerState(), TrainerControl()
    nothing: Any = None
    watch.on_train_begin(nothing, state, control)
    assert state.stateful_callbacks == {"CallWatch": watch.state()}
    assert not control.should_training_stop
