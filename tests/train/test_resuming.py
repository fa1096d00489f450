"""A run that goes on trains on what it began with, repeats no work, and overwrites nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.agents.scripted import ScriptedUpstream
from palio.records import IntegrityError, ResumeError
from palio.train import run
from palio.train.backends import places
from palio.train.checkpoint import check_whole, checkpoint_folder, save_checkpoint
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.racer import with_checkpoints, write_racer
from palio.train.reading import read_recipe
from palio.train.recipe import Recipe
from palio.train.run import CHAIN, Trained, train
from palio.train.stage import Step
from palio.train.tokenizer import ChatTokenizer
from palio.world.artefacts import file_digest
from palio.world.catalogue import Catalogue
from palio.world.world import world_of_catalogue
from tests.train.test_stages import (
    BARE,
    SHORT,
    chain,
    corpus,  # noqa: F401 - a fixture
    ground,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
STEPS = {"max_steps": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}


def read(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_bytes())
    return made


def test_a_refused_recipe_leaves_the_run_as_it_was(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    sft = {"kind": "sft", **SHORT}
    train(chain(sft, {**sft, "name": "more"}), corpus, tmp_path, options=BARE)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for other in (chain({**sft, "seed": 1}), chain(sft, {**sft, "name": "more", "seed": 1})):
        with pytest.raises(ResumeError, match=r"seed: 0 -> 1") as found:
            train(other, corpus, tmp_path, options=BARE)
        assert "--redo" in found.value.remedy
        assert "go on with the old one" not in found.value.remedy
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert checkpoint_folder(tmp_path) == tmp_path / "more" / "checkpoint"
    longer = chain(sft, {**sft, "name": "more"}, {**sft, "name": "most"})
    train(longer, corpus, tmp_path, options=BARE)
    assert len(read(tmp_path / CHAIN)["config"]["stages"]) == 3, "an added stage is told"


def test_a_loss_that_is_no_number_names_the_folder_of_its_stage(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    wild = chain({"kind": "sft", **SHORT, "optimiser": {"other_rate": 1e38}})
    with pytest.raises(IntegrityError, match="not a number at step") as found:
        train(wild, corpus, tmp_path, options=BARE)
    assert found.value.where == str(tmp_path / "sft")
    assert not (tmp_path / "sft" / "checkpoint").exists()


# ---- files


def test_a_checkpoint_is_held_to_its_manifest_file_by_file(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    folder, agent = tmp_path / "run" / "checkpoint", tmp_path / "a.py"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    write_racer(folder, agent)
    (folder / "README.md").write_text("a card, which comes later")
    check_whole(folder)
    with with_checkpoints(ScriptedUpstream(0), [agent]):
        pass
    held = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(held.replace("4096", "128"))
    with pytest.raises(IntegrityError, match=r"tokenizer_config\.json: a file"):
        check_whole(folder)
    with (
        pytest.raises(IntegrityError, match="its manifest lists"),
        with_checkpoints(ScriptedUpstream(0), [agent]),
    ):
        pass
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(IntegrityError, match="its manifest lists"):
        check_whole(folder)


def test_the_checkpoint_that_ships_is_what_its_manifest_lists() -> None:
    check_whole(checkpoint_folder(Path("bundled")))


# ---- pretrained models


@pytest.fixture
def weights(small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def pretrained(weights: Path, *stages: str, **trl: Any) -> Recipe:
    pytest.importorskip("trl", reason="pretrained models are trained by TRL")
    told = [{"kind": "sft", "name": name, "trl": {**STEPS, **trl}} for name in stages]
    model = {"backend": "transformers", "path": str(weights)}
    return read_recipe({"name": "p", "model": model, "stage": told})


def test_a_stage_does_not_begin_on_weights_that_were_changed(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    made = train(pretrained(weights, "one"), corpus, out, options=BARE)
    shutil.copy(weights / "model.safetensors", made.final / "model.safetensors")
    with pytest.raises(IntegrityError, match=r"model\.safetensors: a file of a checkpoint"):
        train(pretrained(weights, "one", "two"), corpus, out, options=BARE)
    assert not (out / "two" / "checkpoint").exists()


def test_the_manifest_tells_what_a_pretrained_model_began_with_and_a_run_is_held_to_it(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    out, recipe = tmp_path / "run", pretrained(weights, "one")
    made = train(recipe, corpus, out, options=BARE)
    told = read(made.final / "manifest.json")["inputs"]["model"]
    assert told == read(out / CHAIN)["inputs"]["model"]
    begun = read(out / "one" / "run.json")
    assert begun["config"]["inputs"]["model"] == told
    config = (weights / "config.json").read_text()
    (weights / "config.json").write_text(config + " ")
    with pytest.raises(ResumeError, match=r"inputs\.model"):
        train(recipe, corpus, out, options=BARE)
    del begun["config"]["inputs"]["model"]
    (out / "one" / "run.json").write_text(json.dumps(begun))
    again = train(recipe, corpus, out, options=BARE)
    assert again.stages[0].skipped, "a run from before it was noted is not held to it"


def test_the_manifest_tells_the_worlds_that_were_rolled_out_in(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tmp_path: Path,
) -> None:
    told = {"samples": 1, "model": "scripted-careful", "threads": 2}
    recipe = chain({"kind": "sft", **SHORT}, {"kind": "teacher", "sampling": told, **SHORT})
    made = train(recipe, corpus, tmp_path, ground=ground, options=BARE)
    inputs = [read(stage.checkpoint / "manifest.json")["inputs"] for stage in made.stages]
    assert "worlds" not in inputs[0]
    assert inputs[1]["worlds"] == ground.worlds_digest()


class Killed(BaseException):
    pass


def test_a_stage_goes_on_in_no_other_world_than_it_began_in(
    corpus: Path,  # noqa: F811
    ground: Ground,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"samples": 1, "model": "scripted-careful", "threads": 2}
    recipe = chain({"kind": "sft", **SHORT}, {"kind": "teacher", "sampling": told, **SHORT})

    def killed(step: Step) -> None:
        if step.stage == "teacher" and step.share > 0:
            raise Killed

    stopping = replace(BARE, report=killed)
    with pytest.raises(Killed):
        train(recipe, corpus, tmp_path, ground=ground, options=stopping)
    [(name, world)] = ground.worlds.items()
    dearer = {
        product_id: msgspec.structs.replace(each, price=each.price + 0.01)
        for product_id, each in world.catalogue.products.items()
    }
    other = world_of_catalogue(Catalogue(name, dearer, world.catalogue.rows))
    elsewhere = replace(ground, worlds={name: other})
    with pytest.raises(ResumeError, match="worlds"):
        train(recipe, corpus, tmp_path, ground=elsewhere, options=BARE)
    redo = replace(stopping, redo=True)
    with pytest.raises(Killed):
        train(recipe, corpus, tmp_path, ground=elsewhere, options=redo)
    with pytest.raises(ResumeError, match="worlds"):
        train(recipe, corpus, tmp_path, ground=ground, options=BARE)
    train(recipe, corpus, tmp_path, ground=elsewhere, options=BARE)
    monkeypatch.setattr(Ground, "worlds_digest", lambda ground: pytest.fail("not for what is done"))
    again = train(recipe, corpus, tmp_path, ground=ground, options=BARE)
    assert [stage.skipped for stage in again.stages] == [True, True]


def test_a_kill_before_the_proof_is_written_repeats_no_training(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[int] = []
    real = places.scored

    def counted(*given: Any) -> Any:
        batches.append(1)
        return real(*given)

    def killed(manifest: Any, path: Path) -> None:
        if path.name == "stage.json":
            raise Killed
        real_manifest(manifest, path)

    real_manifest = run.write_manifest
    monkeypatch.setattr(places, "scored", counted)
    recipe = pretrained(weights, "one")
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(run, "write_manifest", killed)
        with pytest.raises(Killed):
            train(recipe, corpus, out, options=BARE)
    assert len(batches) == 2
    made = train(recipe, corpus, out, options=BARE)
    assert len(batches) == 2, "the last state was still there"
    straight = train(recipe, corpus, tmp_path / "straight", options=BARE)
    assert weights_of(made) == weights_of(straight)
    assert made.stages[0].counts == straight.stages[0].counts
    left = [path.name for path in (out / "one").iterdir()]
    assert "trainer" not in left, "optimiser states are not kept"


def weights_of(made: Trained) -> str:
    return file_digest(made.final / "model.safetensors")


def test_steps_and_tokens_are_those_of_the_trainer(
    weights: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Not those of the last measurement, which may be some updates before the end."""
    made = train(
        pretrained(weights, "one", max_steps=3, logging_steps=2), corpus, tmp_path, options=BARE
    )
    assert made.stages[0].counts["steps"] == 3
    assert made.stages[0].counts["tokens"] > 3 * 2 * 100
    assert read(made.final / "manifest.json")["counts"]["steps"] == 3
