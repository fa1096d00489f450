"""A model is sampled where it is trained, and the next stage has the memory to itself."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from palio.train.checkpoint import save_checkpoint
from palio.train.context import Context
from palio.train.model import Qwen3
from palio.train.reading import read_recipe
from palio.train.run import Options, train
from palio.train.tokenizer import ChatTokenizer
from tests.train.test_stages import SHORT, SMALL, corpus  # noqa: F401 - a fixture

pytest.importorskip("trl", reason="pretrained models are trained by TRL")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

from palio.train.backends import pretrained, weights  # noqa: E402 - needs trl
from palio.train.backends.slots import SlotSampler  # noqa: E402

META = torch.device("meta")
"""Stands for the GPU: no other device is on every machine, and nothing is computed here."""


@pytest.fixture
def context(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Context:
    start = tmp_path / "start"
    save_checkpoint(start, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    recipe = read_recipe(
        {
            "name": "p",
            "model": {"backend": "transformers", "path": str(start), "lora": {"rank": 2}},
            "stage": [{"kind": "sft"}],
        }
    )
    assert recipe.pretrained is not None
    monkeypatch.setattr(weights, "training_device", lambda: META)
    monkeypatch.setattr("palio.train.rl.opening.training_device", lambda: META)
    backend = pretrained.PretrainedBackend(recipe.pretrained)
    return Context(recipe, "sft", 1, seed=0, rows=(), ground=None, backend=backend)


def places(model: Any) -> set[str]:
    return {value.device.type for value in model.parameters()}


def test_rejection_samples_on_the_device_of_training(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Watched(SlotSampler):
        def __init__(self, model: Any, **more: Any) -> None:
            asked.append(model)
            super().__init__(model, **more)

    monkeypatch.setattr("palio.train.backends.slots.SlotSampler", Watched)
    with context.backend.serve(None, context):
        assert places(asked[0]) == {"meta"}
        assert not asked[0].training


def test_the_later_stages_open_their_policy_on_the_device_of_training(context: Context) -> None:
    from palio.train.rl.opening import open_policy

    policy = open_policy(context, None)
    adapted = [name for name, _ in policy.model.named_parameters() if "lora" in name]
    assert adapted
    assert places(policy.model) == {"meta"}


def test_any_checkpoint_is_served_on_the_device_of_training(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palio.train import serving

    asked: list[Any] = []
    monkeypatch.setattr(weights, "training_device", lambda: META)
    monkeypatch.setattr(serving, "is_own", lambda _: False)
    real = weights.load_model
    monkeypatch.setattr(
        weights,
        "load_model",
        lambda *a: asked.append(real(*a)) or asked[0],  # type: ignore[func-returns-value]
    )
    save_checkpoint(tmp_path / "c", small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    with serving.open_checkpoint(tmp_path / "c"):
        assert places(asked[0]) == {"meta"}


def test_what_was_sampled_leaves_nothing_behind(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    """Whoever asked may still hold the model: it is empty, and so are the conversations kept."""
    from palio.train.recipe import PretrainedModel
    from palio.train.rl.sampler import Decoding

    save_checkpoint(tmp_path / "c", small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    loaded = weights.load_model(PretrainedModel(path=str(tmp_path / "c")), None, 0)
    with weights.sampled(loaded) as model, SlotSampler(model, end=tokenizer.end) as sampler:
        assert places(model) == {"cpu"}
        sampler.sample([5, 6, 7], Decoding(2, 0.0, 1.0, 0))
        assert sampler._cache._held
    assert places(loaded) == {"meta"}
    assert not sampler._cache._held


def test_without_a_gpu_training_is_on_the_cpu_and_a_process_has_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert weights.training_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert weights.training_device() == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert weights.training_device() == torch.device("cuda", 3)


def test_a_stage_finds_nothing_of_the_one_before(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from palio.train import run

    left: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Trainer:
        """Holds itself, as trainers and their callbacks do."""

        def __init__(self) -> None:
            self.me = self

    real = run.kind_named

    def watched(name: str) -> Any:
        kind = real(name)

        def work(*given: Any) -> Any:
            alive.append(sum(one() is not None for one in left))
            left.append(weakref.ref(Trainer()))
            return kind.run(*given)

        return msgspec.structs.replace(kind, run=work)

    monkeypatch.setattr(run, "kind_named", watched)
    raw = {
        "name": "t",
        "model": SMALL,
        "stage": [{"kind": "sft", **SHORT}, {"kind": "sft", "name": "more", **SHORT}],
    }
    gc.disable()
    try:
        train(read_recipe(raw), corpus, tmp_path / "run", options=Options(uncertified=True))
    finally:
        gc.enable()
    assert alive == [0, 0]
