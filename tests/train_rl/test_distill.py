"""On-policy distillation: TRL's loss over our rollouts, on the student's tokens alone."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from palio.records import ConfigError, InputError
from palio.train.checkpoint import save_checkpoint
from palio.train.model import ModelConfig, Qwen3
from palio.train.rl.distill import DistillSettings, shrink, train_distill
from palio.train.rl.opening import open_teacher
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import WorldRoller
from palio.train.seen import Witness, read_seen, rolled_digest
from palio.train.settings import TrlSettings
from palio.train.stage import read_metrics
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def settings(steps: int = 2, **more: Any) -> DistillSettings:
    trl = TrlSettings(
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        save_steps=2,
    )
    return DistillSettings(**{"trl": trl, "max_tokens": 10, "threads": 8, **more})


def quiet(share: float, note: str) -> None:
    assert 0 <= share <= 1


def roller_of(scene: Scene, chosen: DistillSettings) -> WorldRoller:
    return WorldRoller(scene.ground.problems[:8], scene.ground, scene.codec, chosen.play())


@pytest.fixture(scope="module")
def teacher(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Qwen3(
        ModelConfig(
            vocab_size=scene.tokenizer.size,
            hidden_size=32,
            intermediate_size=48,
            layers=1,
            head_dim=16,
        )
    )
    model.initialise(9)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(12)  # sharp enough to teach something
    folder = tmp_path_factory.mktemp("teacher") / "checkpoint"
    save_checkpoint(folder, model, scene.tokenizer, config={}, inputs={}, counts={}, seed=9)
    return folder


def test_the_student_comes_closer_to_its_teacher(
    scene: Scene, policy: OwnPolicy, teacher: Path, tmp_path: Path
) -> None:
    chosen = settings(12)
    model = open_teacher(str(teacher), policy)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = train_distill(
        policy, model, roller_of(scene, chosen), chosen, tmp_path, seed=1, report=quiet
    )
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]
    assert {"success", "calls/per_rollout", "audit/invented_ids", "entropy"} <= rows[0].keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert len(trainer.rolled) == 4


def test_its_own_teacher_has_nothing_to_say(
    scene: Scene, policy: OwnPolicy, checkpoint: Path, tmp_path: Path
) -> None:
    chosen = settings(2)
    train_distill(
        policy,
        open_teacher(str(checkpoint), policy),
        roller_of(scene, chosen),
        chosen,
        tmp_path,
        seed=1,
        report=quiet,
    )
    assert read_metrics(tmp_path)[0]["loss"] == pytest.approx(0, abs=1e-6)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    scene: Scene, checkpoint: Path, teacher: Path, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    def killed(share: float, note: str) -> None:
        if share >= 0.75:
            raise Killed

    chosen, ends = settings(4), []
    for name in ("whole", "killed"):
        out = tmp_path / name
        out.mkdir()
        roller = Witness(roller_of(scene, chosen), out)
        for report in (killed, quiet) if name == "killed" else (quiet,):
            policy = OwnPolicy(checkpoint, slots=16)
            model = open_teacher(str(teacher), policy)
            with pytest.raises(Killed) if report is killed else nullcontext():
                train_distill(policy, model, roller, chosen, out, seed=2, report=report)
        ends.append({n: v.clone() for n, v in policy.model.state_dict().items()})
        assert [row["step"] for row in read_metrics(out)] == [1, 2, 3, 4]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    whole, resumed = (read_seen(tmp_path / name) for name in ("whole", "killed"))
    assert whole
    assert resumed
    assert len(whole) == 16 < len(resumed), "step 3 was rolled out twice"
    assert rolled_digest(tmp_path / "whole") == rolled_digest(tmp_path / "killed")


def test_a_teacher_with_another_vocabulary_is_refused(
    scene: Scene, policy: OwnPolicy, tmp_path: Path
) -> None:
    other = Qwen3(ModelConfig(vocab_size=scene.tokenizer.size + 1, hidden_size=16, layers=1))
    other.initialise(0)
    folder = tmp_path / "other"
    save_checkpoint(folder, other, scene.tokenizer, config={}, inputs={}, counts={}, seed=0)
    with pytest.raises(ConfigError, match="same vocabulary"):
        open_teacher(str(folder), policy)
    with pytest.raises(InputError, match="no teacher"):
        open_teacher(str(tmp_path / "nothing"), policy)


def test_a_teacher_whose_ids_mean_other_tokens_is_refused(
    policy: OwnPolicy, teacher: Path, tmp_path: Path
) -> None:
    """Vocabularies of palio are learned up to one size, so many differ and are as large."""
    folder = tmp_path / "other"
    shutil.copytree(teacher, folder)
    told = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = told["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(told), "utf-8")
    with pytest.raises(ConfigError, match="2 ids mean other tokens"):
        open_teacher(str(folder), policy)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert open_teacher(str(folder), policy) is not None, "nothing to compare"


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="divergence"):
        settings(divergence=2.0)
    with pytest.raises(ConfigError, match="temperature"):
        settings(temperature=0.0)
    assert shrink(settings(teacher="x")).teacher == ""
