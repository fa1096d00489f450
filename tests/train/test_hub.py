"""A base by hub name: its commit is told, can be chosen, and is what is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palio.records import ConfigError, ResumeError
from palio.train import run
from palio.train.backends.hub import commit_of, pinned
from palio.train.backends.weights import base_commit, load_model, load_tokenizer
from palio.train.checkpoint import save_checkpoint
from palio.train.inputs import learned_digests, model_digests
from palio.train.model import Qwen3
from palio.train.reading import load_recipe, read_recipe
from palio.train.recipe import PretrainedModel, Recipe
from palio.train.run import CHAIN, Options, train
from palio.train.tokenizer import ChatTokenizer
from tests.train.test_stages import BARE, corpus  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
NAME, COMMIT, OTHER = "org/tiny", "a" * 40, "b" * 40


@pytest.fixture
def cache(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The hub's cache with two commits of one model; the main branch is at the first."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    held = tmp_path / "hub" / "models--org--tiny"
    for commit, shift in ((COMMIT, 0.0), (OTHER, 0.25)):
        folder = held / "snapshots" / commit
        with torch.no_grad():
            small.model.norm.weight.add_(shift)
            save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
            small.model.norm.weight.sub_(shift)
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text(COMMIT)
    (held / "refs" / "v2").write_text(OTHER)
    return held


def test_a_name_means_a_commit_of_the_cache(cache: Path, tmp_path: Path) -> None:
    assert commit_of(NAME) == commit_of(NAME, "main") == COMMIT
    assert commit_of(NAME, "v2") == commit_of(NAME, OTHER) == OTHER
    assert commit_of(NAME, "c" * 40) == "c" * 40, "a commit needs no telling"
    assert commit_of(NAME, "v3") == commit_of("org/none") == commit_of(str(tmp_path)) == ""
    assert commit_of(str(tmp_path / "gone")) == commit_of("a--b") == "", "names of nothing"
    assert pinned(NAME) == {"revision": COMMIT}
    assert pinned(NAME, "v3") == {"revision": "v3"}, "not here: the hub knows it, perhaps"
    assert pinned("org/none") == pinned(str(tmp_path)) == {}
    quantised = cache / "snapshots" / COMMIT / "q4" / "tiny.gguf"
    quantised.parent.mkdir()
    quantised.touch()
    assert commit_of(NAME, file="q4/tiny.gguf") == COMMIT
    assert commit_of(NAME, file="q8/tiny.gguf") == ""


@pytest.mark.parametrize(("revision", "commit"), [("", COMMIT), ("v2", OTHER), (OTHER, OTHER)])
def test_what_is_told_is_what_is_loaded(cache: Path, revision: str, commit: str) -> None:
    model = PretrainedModel(path=NAME, revision=revision)
    assert model_digests(model) == {"revision": commit} == {"revision": base_commit(model)}
    weights = load_model(model, None, 0).state_dict()
    held = load_file(cache / "snapshots" / commit / "model.safetensors")
    assert torch.equal(weights["model.norm.weight"], held["model.norm.weight"])
    assert load_tokenizer(model, None).vocab_size > 0


def test_a_folder_has_no_revision(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(cache / "snapshots" / COMMIT)
    assert model_digests(PretrainedModel(path=folder)).keys() == {"model", "tokenizer"}
    for path in (folder, "package:palio/agents/checkpoint/tiny"):
        with pytest.raises(ConfigError, match="revision, 'v2'"):
            model_digests(PretrainedModel(path=path, revision="v2"))
    shape = PretrainedModel(path=NAME, shape={"hidden_size": 8})
    assert model_digests(shape) == {}, "random weights are of no commit"


@pytest.mark.parametrize("file", ["tokenizer.json", "chat_template.jinja"])
def test_another_tokenizer_or_template_is_another_input(
    cache: Path, tmp_path: Path, file: str
) -> None:
    shutil.copytree(cache / "snapshots" / COMMIT, tmp_path / "own")
    for model in (
        PretrainedModel(path=str(tmp_path / "own")),
        PretrainedModel(path=NAME, tokenizer=str(tmp_path / "own")),
    ):
        before = model_digests(model)
        (tmp_path / "own" / file).write_text("another one" + model.tokenizer)
        after = model_digests(model)
        assert {name for name in before if before[name] != after[name]} == {"tokenizer"}
    named = PretrainedModel(path=str(tmp_path / "own"), tokenizer=NAME)
    assert model_digests(named)["tokenizer"] == COMMIT


def test_a_recipe_without_a_revision_has_the_digest_that_it_had() -> None:
    recipe = load_recipe("qwen3-4b")
    assert "revision" not in recipe.prefix(1)["pretrained"]
    model = {"backend": "transformers", "path": NAME, "revision": "v2"}
    raw = {"name": "p", "model": model, "stage": [{"kind": "sft"}]}
    chosen = read_recipe(raw)
    assert chosen.prefix(1)["pretrained"]["revision"] == "v2"
    assert chosen.digest() != read_recipe({**raw, "model": {**model, "revision": ""}}).digest()


# ---- runs


def recipe(*stages: str, **model: Any) -> Recipe:
    pytest.importorskip("trl", reason="pretrained models are trained by TRL")
    trl = {"max_steps": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    told = [{"kind": "sft", "name": name, "trl": trl} for name in stages]
    named = {"backend": "transformers", "path": NAME, **model}
    return read_recipe({"name": "p", "model": named, "stage": told})


def read(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_bytes())
    return made


def test_a_run_tells_the_commit_and_goes_on_with_no_other(
    cache: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    made = train(recipe("one"), corpus, out, options=BARE)
    for path in (made.final / "manifest.json", out / CHAIN, out / "one" / "stage.json"):
        assert read(path)["inputs"]["revision"] == COMMIT, path.name
    (cache / "refs" / "main").write_text(OTHER)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ResumeError, match=r"inputs\.revision: .aaaa.* -> .bbbb"):
        train(recipe("one"), corpus, out, options=BARE)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    shutil.rmtree(cache)
    assert train(recipe("one"), corpus, out, options=BARE).stages[0].skipped
    begun = read(out / "one" / "run.json")
    assert begun["config"]["inputs"].pop("revision") == COMMIT
    (out / "one" / "run.json").write_text(json.dumps(begun))
    assert train(recipe("one"), corpus, out, options=BARE).stages[0].skipped, "from before"


def test_a_commit_that_loading_brought_is_told_as_well(
    cache: Path,
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that began with an empty cache: the first stage's proof tells it, the next is held."""
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(run, "model_digests", lambda _: {})
        train(recipe("one", "two"), corpus, out, options=BARE)
    told = {
        name: [read(out / name / f"{file}.json") for file in ("run", "stage")]
        for name in ("one", "two")
    }
    assert "revision" not in told["one"][0]["config"]["inputs"]
    assert told["two"][0]["config"]["inputs"]["revision"] == COMMIT
    assert [each[1]["inputs"]["revision"] for each in told.values()] == [COMMIT, COMMIT]
    again = train(recipe("one", "two"), corpus, out, options=BARE)
    assert all(stage.skipped for stage in again.stages)
    other = Options(uncertified=True, redo=True)
    train(recipe("one", attention="eager"), corpus, out, options=other)
    begun = read(out / "one" / "run.json")["config"]["inputs"]
    assert begun["revision"] == COMMIT, "what is done again is held to all of it"
    model = PretrainedModel(path=NAME)
    assert learned_digests(model, {}) == {"revision": COMMIT}
    for known in ({"revision": OTHER}, {"model": "sha256:1"}):
        assert learned_digests(model, known) == {}
    assert learned_digests(None, {}) == {}
    assert learned_digests(PretrainedModel(path="org/none"), {}) == {}
