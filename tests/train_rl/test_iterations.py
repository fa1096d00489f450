"""Several updates on the rollouts of one step: a run that was killed makes the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.records import ConfigError
from palio.train.rl.grpo import shrink, train_grpo
from palio.train.rl.hooks import last_state
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Sampler
from palio.train.rl.settings import GrpoSettings
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene
from tests.train_rl.test_grpo import Graded, Killed, graded, quiet, same, settings, weights

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def twice(updates: Any = 2, **trl: Any) -> GrpoSettings:
    told = {"max_steps": 6, "extra": {"num_iterations": updates}, **trl}
    return settings(trl=msgspec.structs.replace(settings().trl, **told), probe=0)


class Noted(Graded):
    """Notes what it is asked for."""

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        self.asked = [*getattr(self, "asked", []), (tuple(keys), tuple(seeds))]
        return super().roll(keys, seeds, sampler)


def test_a_killed_run_makes_the_rollouts_that_it_would_have_made(
    scene: Scene, checkpoint: Path, tmp_path: Path
) -> None:
    def run(out: Path, report: Any = quiet) -> tuple[OwnPolicy, Noted]:
        policy, chosen = OwnPolicy(checkpoint, slots=16), twice()
        noted = Noted(graded(scene, chosen, problems=4).inner)
        train_grpo(policy, noted, chosen, out, seed=2, report=report)
        return policy, noted

    def killed(share: float, note: str) -> None:
        if share >= 5 / 6:  # amid the updates on the third rollouts
            raise Killed

    whole, all_asked = run(tmp_path / "a")
    assert len(all_asked.asked) == 3
    out = tmp_path / "b"
    with pytest.raises(Killed):
        run(out, killed)
    assert str(last_state(out)).endswith("checkpoint-4")
    again, asked = run(out)
    assert asked.asked == all_asked.asked[2:]
    assert same(weights(whole), weights(again))
    losses = [[row["loss"] for row in read_metrics(tmp_path / name)] for name in ("a", "b")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"save_steps": 3}, "say save_steps = 4"),
        ({"save_steps": 1}, "say save_steps = 2"),
        ({"max_steps": 5}, "say max_steps = 6"),
    ],
)
def test_a_state_amid_the_updates_on_a_steps_rollouts_is_refused(
    wrong: dict[str, int], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        twice(**wrong)
    twice(1, **wrong)


def test_epochs_are_whole_windows_of_updates() -> None:
    assert twice(max_steps=-1).updates == 2


@pytest.mark.parametrize("wrong", [0, 1.5, "2", True])
def test_a_number_of_updates_is_one(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="num_iterations must be an integer from 1"):
        twice(wrong)


def test_a_dry_run_has_two_windows_of_updates() -> None:
    small = shrink(twice(3, save_steps=3))
    assert (small.trl.max_steps, small.trl.save_steps) == (6, 3)
