"""KTO on the rollouts of a server: token for token what the model itself would have said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from palio.records import InputError, UpstreamError
from palio.train.backends.choice import backend_of
from palio.train.context import Context
from palio.train.engine import Engine
from palio.train.preference import kto
from palio.train.preference.kto import KtoSettings, run_kto, shrink
from palio.train.preference.labels import LABELLED, Labelled, read_labels, sample_labels
from palio.train.reading import read_recipe
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rollouts import WorldRoller
from palio.train.rl.sampler import Decoding, EngineSampler
from palio.train.rollouts import SETTLED
from tests.train_rl.conftest import Scene
from tests.train_rl.test_sampler import serving

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def quiet(share: float, note: str) -> None:
    assert 0 <= share <= 1


def served(scene: Scene, url: str) -> tuple[KtoSettings, Context]:
    """A dry stage, so that rollouts of a random model have both labels."""
    sampling = {"problems": 2, "samples": 2, "threads": 4, "max_tokens": 8, "base_url": url}
    trl = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
    stage = {"kind": "kto", "sampling": {**sampling, "model": "student"}, "trl": trl}
    recipe = msgspec.structs.replace(read_recipe({"name": "t", "stage": [stage]}), dry=True)
    chosen = recipe.stages[0].settings
    assert isinstance(chosen, KtoSettings)
    made = Context(
        recipe, "kto", 1, seed=0, rows=(), ground=scene.ground, backend=backend_of(recipe)
    )
    return chosen, made


def test_a_server_that_is_named_samples(
    scene: Scene, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with Engine(checkpoint, slots=4) as engine:

        def answer(body: dict[str, Any]) -> dict[str, Any]:
            asked.append(body["model"])
            wish = Decoding(**{name: body[name] for name in Decoding._fields})
            found = EngineSampler(engine).sample(body["prompt"], wish)
            told = {"token_ids": found.ids, "logprobs": {"token_logprobs": found.logprobs}}
            return {"choices": [told]}

        with serving(answer) as url, monkeypatch.context() as patched:
            patched.delattr(OwnPolicy, "sampler")
            chosen, context = served(scene, f"{url}/v1")
            made = run_kto(chosen, context, checkpoint, tmp_path, quiet)
    assert made.counts["rollouts"] == 4
    assert made.counts["unscored"] == 0
    assert len(asked) >= 4
    assert set(asked) == {"student"}
    (tmp_path / "own").mkdir()
    with OwnPolicy(checkpoint).sampler(None) as sampler:
        problems = scene.ground.evenly(2, "kto-0")
        roller = WorldRoller(problems, scene.ground, scene.codec, chosen.play())
        own = sample_labels(roller, sampler, tmp_path / "own", samples=2, seed=0)
    assert own == read_labels(tmp_path / LABELLED), "token for token what the model itself says"


def test_a_server_that_does_not_answer_is_named(
    scene: Scene, checkpoint: Path, tmp_path: Path
) -> None:
    chosen, context = served(scene, "http://127.0.0.1:9")
    with pytest.raises(UpstreamError, match="127.0.0.1:9"):
        run_kto(chosen, context, checkpoint, tmp_path, quiet)
    assert not (tmp_path / LABELLED).exists()
    assert shrink(chosen).sampling.base_url == "", "a dry run asks nobody outside"


def test_rollouts_that_fill_no_batch_are_not_settled(
    scene: Scene, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage left two of four: the next run samples the others, and is not told the same."""
    chosen, context = served(scene, "")
    context = replace(context, recipe=msgspec.structs.replace(context.recipe, dry=False))
    trl = msgspec.structs.replace(chosen.trl, per_device_train_batch_size=4)
    chosen = msgspec.structs.replace(chosen, trl=trl)
    row = Labelled(key="p", number=0, prompt=(1,), completion=(2,), mask=(1,), label=True)
    told = [msgspec.structs.replace(row, label=label) for label in (True, False, None, None)]
    monkeypatch.setattr(kto, "sample_labels", lambda *_, **__: told)
    with pytest.raises(InputError, match="2 labelled rollouts do not fill one batch of 4"):
        run_kto(chosen, context, checkpoint, tmp_path, quiet)
    assert not (tmp_path / SETTLED).exists()
