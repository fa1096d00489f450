"""A step is as large as its stage says, or refused; a stage without an update is not sealed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from palio.records import ConfigError, InputError, PalioError
from palio.train.context import Context
from palio.train.reading import bundled_recipes, load_recipe, read_recipe
from palio.train.rl.distill import train_distill
from palio.train.rl.grpo import _counts, run_grpo, train_grpo
from palio.train.rl.hooks import finished
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.processes import sealed
from palio.train.rl.rollouts import Rollout
from palio.train.rl.sampler import Sampler
from palio.train.rl.settings import GrpoSettings
from palio.train.run import train
from palio.train.settings import TrlSettings
from palio.train.stage import check_trained, read_metrics
from tests.train_rl.conftest import Scene
from tests.train_rl.test_distill import roller_of
from tests.train_rl.test_distill import settings as distill_settings
from tests.train_rl.test_grpo import Graded, graded, quiet, settings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Counting(Graded):
    """Graded rollouts, counted."""

    count = 0

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        self.count += len(keys)
        return super().roll(keys, seeds, sampler)


def trl(batch: int, parts: int, **more: Any) -> TrlSettings:
    fields = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": parts}
    return msgspec.structs.replace(settings().trl, **fields, **more)


def test_fewer_problems_than_a_step_takes_are_refused_before_a_rollout(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = settings()
    roller = Counting(graded(scene, chosen, problems=1).inner)
    with pytest.raises(ConfigError, match="takes 2 different problems, and there are 1.*`groups`"):
        train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
    assert roller.count == 0
    enough = Counting(graded(scene, chosen, problems=2).inner)
    trainer = train_grpo(policy, enough, chosen, tmp_path, seed=1, report=quiet)
    assert trainer.state.global_step == 2


def test_a_distillation_of_fewer_problems_than_a_batch_is_refused_before_a_rollout(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = distill_settings(trl=trl(4, 3))
    roller = roller_of(scene, chosen)
    with pytest.raises(ConfigError, match="takes 12 different problems, and there are 8.*batch"):
        train_distill(policy, policy.copy(), roller, chosen, tmp_path, seed=1, report=quiet)
    assert read_metrics(tmp_path) == []


def test_a_recipe_that_asks_for_too_few_problems_is_refused_when_it_is_read() -> None:
    for stage, told in (
        ({"kind": "grpo", "problems": 15}, "takes 16 different problems, and there are 15"),
        ({"kind": "distill", "problems": 31}, "takes 32 different problems, and there are 31"),
    ):
        with pytest.raises(ConfigError, match=told):
            read_recipe({"stage": [stage]})
        read_recipe({"stage": [{**stage, "problems": int(stage["problems"]) + 1}]})  # type: ignore[call-overload]
    rows = {"kind": "grpo", "problems": 2, "reward": "prefix"}
    read_recipe({"stage": [rows]})  # rows, which have several turns each


def test_a_launched_stage_refuses_before_it_starts_a_process(scene: Scene, tmp_path: Path) -> None:
    chosen = GrpoSettings(trl=trl(32, 4, launch=("no-such-launcher",)))
    few = scene.ground.only(lambda each: each == scene.ground.problems[0].problem_id)
    recipe = read_recipe({"stage": [{"kind": "sft"}]})
    context = Context(recipe, "grpo", 1, 0, (), few, backend=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="takes 16 different problems, and there are 1"):
        run_grpo(chosen, context, None, tmp_path, quiet)


def test_only_a_stage_that_runs_problems_asks_for_them(tmp_path: Path) -> None:
    def refused(**stage: object) -> str:
        recipe = read_recipe({"stage": [{"kind": "sft"}, {"kind": "grpo", **stage}]})
        with pytest.raises(PalioError) as caught:
            train(recipe, tmp_path / "no-corpus", tmp_path / "run")
        return str(caught.value)

    assert "rolls out training problems, and there are none" in refused(reward="outcome")
    told = refused(reward="prefix", problems=2)
    assert "no-corpus" in told, "teachers' rows are all that it reads: next comes the corpus"


# ---- how many rollouts a step has


def test_a_step_of_several_batches_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"32 rollouts \(8 groups of 4\).*no batch of 8"):
        settings(groups=8)
    chosen = settings(groups=8, trl=trl(4, 2, launch=("torchrun",)))
    assert chosen.groups == 8, "four processes take the four batches"


def test_one_process_of_a_launcher_that_should_be_several_is_refused(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    chosen = settings(groups=4, trl=trl(4, 2, launch=("torchrun",)))
    roller = Counting(graded(scene, chosen).inner)
    with pytest.raises(ConfigError, match="1 processes take 8 rollouts.*a step makes 16"):
        train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
    assert roller.count == 0


@pytest.mark.parametrize(("iterations", "steps", "made"), [(1, 3, 24), (2, 4, 16)])
def test_the_rollouts_that_are_told_are_those_that_were_made(
    scene: Scene, policy: OwnPolicy, tmp_path: Path, iterations: int, steps: int, made: int
) -> None:
    extra = {"num_iterations": iterations} if iterations > 1 else {}
    chosen = settings(trl=trl(4, 2, max_steps=steps, save_steps=2, extra=extra))
    roller = Counting(graded(scene, chosen).inner)
    trainer = train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
    counts = _counts(trainer, roller)
    assert counts == {"steps": steps, "rollouts": made, "stopped_early": 0}
    assert roller.count == made


def test_every_step_that_ships_is_one_batch() -> None:
    tables = [
        (stage, load_recipe(name))
        for name in bundled_recipes()
        for stage in load_recipe(name).of_kind("grpo")
    ]
    plans = resources.files("palio.evaluate.experiment").joinpath("plans")
    files = [file for file in plans.iterdir() if file.name.endswith(".toml")]
    raw = [tomllib.loads(file.read_text()) for file in files]
    stages = [
        stage
        for plan in raw
        for arm in plan["arm"]
        for stage in arm.get("stages", ())
        if stage["kind"] in ("grpo", "kto", "distill")
    ]
    assert len(tables) >= 2
    assert len(stages) >= 6
    for stage in stages:
        read_recipe({"stage": [stage]})  # refuses a step that is no batch


# ---- no update, no checkpoint


def test_a_stage_without_an_update_is_not_sealed(tmp_path: Path) -> None:
    nothing: Any = None
    context: Any = SimpleNamespace()
    with pytest.raises(InputError, match="no update"):
        finished(nothing, context, tmp_path, {"steps": 0}, "")
    backend = SimpleNamespace(codec=lambda *_: None)
    context = SimpleNamespace(backend=backend)
    with pytest.raises(InputError, match="no update"):
        sealed(context, None, tmp_path, {"steps": 0}, "")
    check_trained(1, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_stage_that_had_all_its_steps_before_a_kill_is_trained(
    scene: Scene, checkpoint: Path, tmp_path: Path
) -> None:
    chosen = settings(2)
    for _ in range(2):
        policy = OwnPolicy(checkpoint, slots=16)
        roller = Counting(graded(scene, chosen).inner)
        trainer = train_grpo(policy, roller, chosen, tmp_path, seed=1, report=quiet)
        assert _counts(trainer, roller)["steps"] == 2
        assert _counts(trainer, roller)["rollouts"] == 16
    assert roller.count == 0, "the second one had nothing left to do"
    check_trained(trainer.state.global_step, tmp_path)
