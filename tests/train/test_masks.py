"""KTO and Dr. GRPO hand a pretrained model the same ids and masks, under each chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palio.judging.encoders import default_encoder
from palio.records import Message
from palio.train.backends.codec import PretrainedCodec, template_text
from palio.train.backends.weights import load_model, load_tokenizer
from palio.train.checkpoint import save_checkpoint
from palio.train.codec import Talk
from palio.train.engine import Sampled
from palio.train.ground import Ground
from palio.train.model import Qwen3
from palio.train.recipe import PretrainedModel
from palio.train.settings import TrlSettings
from palio.train.text import END, assistant_text
from palio.train.tokenizer import ChatTokenizer
from tests.train.conftest import Shop

pytest.importorskip("trl", reason="KTO and Dr. GRPO are TRL's")

from palio.train.preference.kto import KtoSettings, kto_arguments
from palio.train.preference.labels import Labelled, sample_labels
from palio.train.preference.trainer import MaskedCollator, MaskedKtoTrainer, kto_dataset
from palio.train.rl.grpo import dr_grpo_arguments
from palio.train.rl.policy import TransformersPolicy
from palio.train.rl.rollouts import Play, Rollout, WorldRoller
from palio.train.rl.sampler import Decoding, Sampler
from palio.train.rl.settings import GrpoSettings
from palio.train.rl.trainer import Scheme, StepGrpoTrainer

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
COUNT = 4
STEPS = TrlSettings(per_device_train_batch_size=COUNT, gradient_accumulation_steps=1)


class Told:
    """Says the given turns."""

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns = [list(turn) for turn in turns]

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        turn = self.turns.pop(0)
        return Sampled(turn, [-0.5] * len(turn))


class Given:
    """Rolls out what it is given; every other rollout is a failure, so that advantages differ."""

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self.rollouts = [replace(one, outcome=float(at % 2)) for at, one in enumerate(rollouts)]
        self.keys = tuple(one.key for one in rollouts)

    def roll(self, keys: Sequence[str], seeds: Sequence[int], sampler: Sampler) -> list[Rollout]:
        return self.rollouts[: len(keys)]


@pytest.fixture(scope="module")
def weights(
    small: Qwen3, tokenizer: ChatTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("masks") / "small"
    save_checkpoint(folder, small, tokenizer, config={}, inputs={}, counts={}, seed=0)
    return folder


def policy_of(weights: Path, template: str) -> TransformersPolicy:
    model = PretrainedModel(path=str(weights))
    codec = PretrainedCodec(load_tokenizer(model, None), template_text(template))
    return TransformersPolicy(
        load_model(model, None, 0), codec.tokenizer, codec, lambda *_, **__: None
    )


def rolled(
    codec: PretrainedCodec, shop: Shop, talks: Sequence[Sequence[Message]], out: Path
) -> tuple[list[Rollout], list[Labelled]]:
    """The careful shopper's turns as rollouts, and as what KTO labels of the same turns."""
    rollouts, labelled = [], []
    for number, messages in enumerate(talks):
        problem = shop.problems[number]
        ground = Ground((problem,), {problem.catalogue: shop.world}, default_encoder())
        roller = WorldRoller([problem], ground, codec, Play(longest=9000, max_tokens=999))
        turns = [codec.encode(text) for text in said(messages)]
        rollouts += roller.roll([problem.problem_id], [0], Told(turns))
        folder = out / str(number)
        folder.mkdir()
        labelled += sample_labels(roller, Told(turns), folder, samples=1, seed=0)
    return rollouts, labelled


def said(messages: Sequence[Message]) -> list[str]:
    return [assistant_text(each) + END for each in messages if each.role == "assistant"]


def kto_batch(policy: TransformersPolicy, rows: Sequence[Labelled], out: Path) -> dict[str, Any]:
    """What KTO's trainer hands the model."""
    trainer = MaskedKtoTrainer(
        model=policy.model,
        ref_model=policy.copy(),
        args=kto_arguments(KtoSettings(trl=STEPS), out, 0, (1.0, 1.0)),
        data_collator=MaskedCollator(pad_token_id=policy.codec.pad),
        train_dataset=kto_dataset(rows, COUNT),
        processing_class=policy.tokenizer,
    )
    [batch] = trainer.get_train_dataloader()
    made: dict[str, Any] = batch
    return made


def grpo_batch(
    policy: TransformersPolicy, rollouts: Sequence[Rollout], out: Path
) -> dict[str, Any]:
    """What Dr. GRPO's trainer hands the model."""
    chosen = GrpoSettings(trl=STEPS, group=COUNT, groups=1, reward="outcome", longest=9000)
    roller = Given(rollouts)
    trainer = StepGrpoTrainer(
        policy,
        roller,
        Scheme(COUNT, 0.0, 1.0, "step", 0, 0, 0.0),
        start=policy.copy(),
        args=dr_grpo_arguments(chosen, out, 0),
        keys=roller.keys,
    )
    made: dict[str, Any] = trainer._generate_and_score_completions(
        [{"prompt": key} for key in roller.keys]
    )
    return made


@pytest.mark.parametrize("template", ["", "signatures", "qwen3"])
def test_kto_and_grpo_train_on_the_same_tokens_as_sft(
    template: str,
    weights: Path,
    shop: Shop,
    talks: list[Sequence[Message]],
    tmp_path: Path,
) -> None:
    policy = policy_of(weights, template)
    codec = policy.codec
    assert isinstance(codec, PretrainedCodec)
    rollouts, labelled = rolled(codec, shop, talks[:COUNT], tmp_path)
    kto = kto_batch(policy, labelled, tmp_path)
    grpo = grpo_batch(policy, rollouts, tmp_path)
    rows = {}
    for ids, real, mask in zip(
        kto["input_ids"], kto["attention_mask"], kto["completion_mask"], strict=True
    ):
        whole = tuple(ids[real.bool()].tolist())
        rows[whole] = mask[real.bool()].tolist()
        assert not (mask.bool() & ~real.bool()).any()
    assert len(rows) == COUNT
    for at, messages in enumerate(talks[:COUNT]):
        prompt = grpo["prompt_ids"][at][grpo["prompt_mask"][at].bool()].tolist()
        real = grpo["completion_mask"][at].bool()
        completion = grpo["completion_ids"][at][real].tolist()
        mask = grpo["tool_mask"][at][real].tolist()
        assert rows[(*prompt, *completion)] == [0] * len(prompt) + mask
        kept = [token for token, on in zip(completion, mask, strict=True) if on]
        assert codec.decode(kept) == "".join(said(messages))
        record = rollouts[at].trajectory
        assert record is not None
        [row] = codec.encode_talks([Talk(record.messages, record.tools)])
        size = len(prompt) + len(completion)
        assert [*prompt, *completion] == row.ids[:size]
        assert [0] * len(prompt) + mask == list(map(int, row.trained[:size]))
        assert not any(row.trained[size:])
        moved = grpo["advantages"][at][real] != 0
        assert moved.tolist() == list(map(bool, mask)), "nothing else moves the weights"
