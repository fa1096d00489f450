"""Weights that are no numbers replace no good state, and a state that is cut off is not taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from palio.records import InputError, IntegrityError
from palio.train.backends.job import newest_state
from palio.train.checkpoint import save_checkpoint
from palio.train.disk import readable
from palio.train.model import Qwen3
from palio.train.recipe import PretrainedModel
from palio.train.run import Options, train
from palio.train.tokenizer import ChatTokenizer
from tests.train.test_stages import SHORT, chain, corpus  # noqa: F401 - a fixture

WILD = {"other_rate": 1e40}


def options(every: float) -> Options:
    return Options(uncertified=True, save_every=every, threads=1)


def test_a_state_of_weights_that_are_no_numbers_is_not_saved(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The loss is that before the update, so the last update can spoil weights unseen."""
    wild = chain({"kind": "sft", **SHORT, "optimiser": WILD})
    with pytest.raises(IntegrityError, match=r"weights of stage 'sft' are not numbers at step 1"):
        train(wild, corpus, tmp_path, options=options(0.0))
    assert not list((tmp_path / "sft").glob("*state.pt*"))


def test_the_last_update_is_looked_at_too(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    wild = chain({"kind": "sft", **SHORT, "tokens": 1, "optimiser": WILD})
    with pytest.raises(IntegrityError, match="the weights are not numbers") as error:
        train(wild, corpus, tmp_path, options=options(1e9))
    assert error.value.where == str(tmp_path / "sft" / "checkpoint")
    assert not list((tmp_path / "sft").glob("*checkpoint*"))
    assert not (tmp_path / "sft" / "stage.json").exists()


def test_a_saved_state_that_is_cut_off_is_named(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = chain({"kind": "sft", **SHORT})
    monkeypatch.setattr("palio.train.backends.loop.save_checkpoint", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(recipe, corpus, tmp_path, options=options(0.0))
    monkeypatch.undo()
    state = tmp_path / "sft" / "state.pt"
    whole = state.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"nonsense"):
        state.write_bytes(data)
        with pytest.raises(IntegrityError, match="saved state cannot be read") as error:
            train(recipe, corpus, tmp_path, options=options(0.0))
        assert error.value.where == str(state)
        assert state.read_bytes() == data, "nothing is thrown away unasked"
    state.unlink()
    assert train(recipe, corpus, tmp_path, options=options(1e9)).final.is_dir()


def test_a_trainer_goes_on_from_its_newest_whole_state(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"a": torch.zeros(64)}, folder / "model.safetensors")
        torch.save({"a": 1}, folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    assert newest_state(tmp_path) == str(tmp_path / "checkpoint-3")
    weights = tmp_path / "checkpoint-3" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert not readable(weights.parent)
    assert newest_state(tmp_path) == str(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / "optimizer.pt").write_bytes(b"")
    assert newest_state(tmp_path) == str(tmp_path / "checkpoint-1")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_are_cut_off_begin_no_training(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="reads them")
    from palio.train.backends.weights import check_vocabulary, load_model, load_tokenizer

    save_checkpoint(tmp_path, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    named = PretrainedModel(path=str(tmp_path))
    loaded, read = load_model(named, None, 0), load_tokenizer(named, None)
    check_vocabulary(read, loaded, "here")
    read.add_tokens(["one more"])
    with pytest.raises(InputError, match="entries and the model"):
        check_vocabulary(read, loaded, "here")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: 2**12])
    with pytest.raises(InputError, match="no causal language model") as error:
        load_model(named, None, 0)
    assert error.value.where == str(tmp_path)
