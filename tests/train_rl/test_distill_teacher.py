"""A distillation says which teacher it learned from, and goes on with no other."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from palio.corpus.rows import row_of
from palio.records import ConfigError, IntegrityError, MissingDependencyError, ResumeError, to_json
from palio.train.card import write_card
from palio.train.checkpoint import BUNDLED, checkpoint_folder
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.rl.distill import DistillSettings
from palio.train.rl.grpo import dr_grpo_arguments
from palio.train.rl.opening import open_teacher, teacher_digests, teacher_place
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.settings import GrpoSettings
from palio.train.run import CHAIN, Options, Trained, train
from palio.train.serving import checkpoint_digests, weights_digest
from palio.train.settings import TrlSettings
from palio.train.stage import Step
from palio.world.artefacts import file_digest
from tests.train_rl.conftest import Scene

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
COMMIT, OTHER = "a" * 40, "b" * 40


class Killed(BaseException):
    pass


@pytest.fixture
def teacher(checkpoint: Path, tmp_path: Path) -> Path:
    """Of the student's shape, in a run's folder: a run may be named as well as a checkpoint."""
    shutil.copytree(checkpoint, tmp_path / "taught" / "checkpoint")
    return tmp_path / "taught"


@pytest.fixture(scope="module")
def corpus(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    rows = [to_json(row_of(talk, talk.problem_id)) for talk in scene.talks[:4]]
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    return path


def recipe(checkpoint: Path, teacher: str, **more: Any) -> Recipe:
    trl = {
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "save_steps": 1,
    }
    stage = {
        "kind": "distill",
        "teacher": teacher,
        "problems": 2,
        "max_tokens": 6,
        "threads": 2,
        "longest": 3000,
        "trl": trl,
        **more,
    }
    return read_recipe({"name": "d", "model": {"start": str(checkpoint)}, "stage": [stage]})


class Distilled:
    """Trains one recipe in one folder, as often as it is asked."""

    def __init__(self, scene: Scene, checkpoint: Path, corpus: Path, out: Path) -> None:
        self._scene, self._checkpoint, self._corpus, self.out = scene, checkpoint, corpus, out

    def __call__(self, teacher: Path | str, *, kill: float = 2.0) -> Trained:
        def report(step: Step) -> None:
            if kill <= step.share < 1:
                raise Killed

        options = Options(uncertified=True, threads=1, report=report)
        chosen = recipe(self._checkpoint, str(teacher))
        return train(chosen, self._corpus, self.out, ground=self._scene.ground, options=options)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.out.rglob("*") if path.is_file()}


@pytest.fixture
def distilled(scene: Scene, checkpoint: Path, corpus: Path, tmp_path: Path) -> Distilled:
    return Distilled(scene, checkpoint, corpus, tmp_path / "run")


def read(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_bytes())
    return made


def changed(folder: Path, *, seal: bool = True) -> None:
    """Other weights in the same place; `seal`: with no manifest that could tell."""
    if seal:
        (folder / "manifest.json").unlink(missing_ok=True)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_stage_tells_its_teacher_and_goes_on_with_no_other(
    distilled: Distilled, teacher: Path
) -> None:
    weights = weights_digest(teacher / "checkpoint")
    assert weights == checkpoint_digests(teacher)["weights"], "as servers and evaluations tell it"
    with pytest.raises(Killed):
        distilled(teacher, kill=0.5)
    before = distilled.files()
    kept = (teacher / "checkpoint" / "model.safetensors").read_bytes()
    changed(teacher / "checkpoint")
    with pytest.raises(ResumeError, match=r"inputs\.teacher: .sha256:") as found:
        distilled(teacher)
    assert weights[:40] in found.value.what
    assert found.value.where == str(distilled.out / "distill")
    assert "--redo" in found.value.remedy
    assert distilled.files() == before, "nothing is overwritten"
    (teacher / "checkpoint" / "model.safetensors").write_bytes(kept)

    made = distilled(teacher)
    told = {"teacher": weights, "teacher_config": file_digest(teacher / "checkpoint/config.json")}
    for path in (made.final / "manifest.json", distilled.out / "distill" / "stage.json"):
        inputs = read(path)["inputs"]
        assert {key: inputs[key] for key in inputs if key.startswith("teacher")} == told
    card = write_card(distilled.out).read_text()
    assert f"| teacher | `{weights}` |" in card, "the last stage's inputs"
    assert f"\n- teacher: `{weights}`\n" in card, "every distillation's"
    assert "teacher" not in read(distilled.out / CHAIN)["inputs"], "it is the stage's own"

    changed(teacher / "checkpoint")
    with pytest.raises(ResumeError, match=r"inputs\.teacher"):
        distilled(teacher)
    shutil.rmtree(teacher)
    assert distilled(teacher).stages[0].skipped, "one that is gone contradicts nothing"


def test_a_stage_from_before_teachers_were_told_goes_on(
    distilled: Distilled, teacher: Path
) -> None:
    with pytest.raises(Killed):
        distilled(teacher, kill=0.5)
    path = distilled.out / "distill" / "run.json"
    begun = read(path)
    for key in ("teacher", "teacher_config"):
        del begun["config"]["inputs"][key]
    path.write_text(json.dumps(begun))
    made = distilled(teacher)
    assert read(made.final / "manifest.json")["inputs"]["teacher"] == weights_digest(
        teacher / "checkpoint"
    )


def test_its_own_start_needs_no_word(distilled: Distilled) -> None:
    assert teacher_digests("") == {}
    made = distilled("")
    inputs = read(made.final / "manifest.json")["inputs"]
    assert not any(key.startswith("teacher") for key in inputs)


def test_a_teacher_is_held_to_its_own_manifest(teacher: Path) -> None:
    changed(teacher / "checkpoint", seal=False)
    with pytest.raises(IntegrityError, match=r"model\.safetensors: a file of a checkpoint"):
        teacher_digests(str(teacher))


def test_a_changed_configuration_is_another_teacher(teacher: Path) -> None:
    before = teacher_digests(str(teacher))
    (teacher / "checkpoint" / "manifest.json").unlink()
    path = teacher / "checkpoint" / "config.json"
    path.write_text(path.read_text() + " ")
    after = teacher_digests(str(teacher))
    assert after["teacher"] == before["teacher"]
    assert after["teacher_config"] != before["teacher_config"]


def test_a_teacher_in_a_package_is_told_by_name_and_version(
    teacher: Path, policy: OwnPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    shutil.copytree(teacher / "checkpoint", site / "wise_weights" / "one")
    (site / "wise_weights" / "__init__.py").touch()
    facts = site / "wise_teacher-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: wise-teacher\nVersion: 1.2\n")
    (facts / "top_level.txt").write_text("wise_weights\n")
    monkeypatch.syspath_prepend(str(site))
    name = "package:wise_weights/one"
    assert teacher_digests(name) == {
        **teacher_digests(str(teacher)),
        "teacher_package": "wise-teacher 1.2",
    }
    assert teacher_place(name) == str(site / "wise_weights" / "one")
    open_teacher(name, policy)
    shutil.rmtree(facts)
    assert teacher_digests(name)["teacher_package"] == "wise_weights", "not installed by pip"
    with pytest.raises(MissingDependencyError, match="foolish"):
        teacher_digests("package:foolish")
    sys.modules.pop("wise_weights", None)


def test_a_teacher_of_the_hub_is_told_by_its_commit_and_is_the_one_of_the_cache(
    teacher: Path, policy: OwnPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert teacher_digests("org/wise") == {}, "nothing here tells it, and nobody else is asked"
    held = tmp_path / "hub" / "models--org--wise"
    for commit in (COMMIT, OTHER):
        shutil.copytree(teacher / "checkpoint", held / "snapshots" / commit)
    changed(held / "snapshots" / OTHER)
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text(COMMIT)
    assert teacher_digests("org/wise") == {"teacher_revision": COMMIT}
    first = open_teacher("org/wise", policy).state_dict()
    (held / "refs" / "main").write_text(OTHER)
    assert teacher_digests("org/wise") == {"teacher_revision": OTHER}
    second = open_teacher("org/wise", policy).state_dict()
    assert not all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_teacher_that_ships_can_be_named() -> None:
    folder = checkpoint_folder(Path(BUNDLED))
    assert teacher_place(BUNDLED) == str(folder)
    assert teacher_digests(BUNDLED)["teacher"] == weights_digest(folder)


def test_a_server_is_no_teacher_of_distributions() -> None:
    with pytest.raises(ConfigError, match="cannot be distilled from") as found:
        DistillSettings(teacher="https://me:secret@host/v1?key=secret")
    assert found.value.where == "https://host/v1"
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("extra", [{"no_such_field": 1}, {"optim": "no such one"}])
def test_what_trl_does_not_take_is_a_clear_error(
    distilled: Distilled, checkpoint: Path, tmp_path: Path, extra: dict[str, Any]
) -> None:
    """Of Dr. GRPO and distillation as of all other kinds."""
    trl = TrlSettings(extra=extra, per_device_train_batch_size=8, gradient_accumulation_steps=16)
    with pytest.raises(ConfigError, match="TRL does not take the settings of stage 'last'"):
        dr_grpo_arguments(GrpoSettings(trl=trl), tmp_path / "last", 0)
    small = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    chosen = recipe(checkpoint, "", trl={"max_steps": 1, "extra": extra, **small})
    options = Options(uncertified=True, threads=1)
    with pytest.raises(ConfigError, match=f"stage 'distill': .*{next(iter(extra))}"):
        train(
            chosen,
            distilled._corpus,
            distilled.out,
            ground=distilled._scene.ground,
            options=options,
        )
