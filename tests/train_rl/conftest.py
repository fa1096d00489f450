"""A small compact world, a model too small to shop, and a sampler that says what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="the stages of post-training need trl")

import torch

from palio.agents.registry import find_agent
from palio.agents.scripted import ScriptedUpstream
from palio.judging import default_encoder
from palio.records import Trajectory
from palio.rollout import run_problem
from palio.sandbox.inline import InlineDriver
from palio.train import model
from palio.train.backends.loop import ChatCodec
from palio.train.checkpoint import save_checkpoint
from palio.train.engine import Sampled
from palio.train.ground import Ground
from palio.train.model import ModelConfig, Qwen3
from palio.train.rl.policy import OwnPolicy
from palio.train.rl.rewards import TeacherPolicy
from palio.train.rl.sampler import Decoding
from palio.train.tokenizer import ChatTokenizer, train_tokenizer
from palio.world.synthesis import compact_config, synthesise
from palio.world.world import COMPACT, World


@dataclass(frozen=True)
class Scene:
    """Problems with their world, and the careful shopper's conversations about them."""

    ground: Ground
    talks: tuple[Trajectory, ...]
    tokenizer: ChatTokenizer

    @property
    def codec(self) -> ChatCodec:
        return ChatCodec(self.tokenizer)

    @property
    def teacher(self) -> TeacherPolicy:
        return TeacherPolicy(ScriptedUpstream(0), "scripted-careful")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 16 bits where they are asked for, whatever the processor has."""
    monkeypatch.setattr(model, "product_type", lambda _device: torch.bfloat16)


@pytest.fixture(scope="session")
def scene() -> Scene:
    made = synthesise(compact_config(5, products=300, problems=45))
    world = World.build(made.catalogue, COMPACT)
    agent, driver, upstream = find_agent("careful"), InlineDriver(), ScriptedUpstream(0)
    talks = tuple(
        run_problem(agent, problem, world, driver=driver, upstream=upstream)
        for problem in made.problems
    )
    ground = Ground(made.problems, {made.catalogue.catalogue_id: world}, default_encoder())
    return Scene(ground, talks, train_tokenizer([talk.messages for talk in talks], size=800))


@pytest.fixture(scope="session")
def checkpoint(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, about 0.1 M parameters."""
    model = Qwen3(
        ModelConfig(
            vocab_size=scene.tokenizer.size,
            hidden_size=48,
            intermediate_size=64,
            layers=2,
            head_dim=16,
        )
    )
    model.initialise(5)
    folder = tmp_path_factory.mktemp("start") / "checkpoint"
    save_checkpoint(folder, model, scene.tokenizer, config={}, inputs={}, counts={}, seed=5)
    return folder


@pytest.fixture
def policy(checkpoint: Path) -> OwnPolicy:
    return OwnPolicy(checkpoint, slots=16)


class ToldSampler:
    """Says the given turns one after the other, whatever it is asked.

    Attributes:
        prompts: what it was asked.
    """

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self._turns = [list(turn) for turn in turns]
        self.prompts: list[list[int]] = []

    def sample(self, ids: Sequence[int], decoding: Decoding) -> Sampled:
        self.prompts.append(list(ids))
        turn = self._turns[len(self.prompts) - 1][: decoding.max_tokens]
        return Sampled(turn, [-0.5] * len(turn))
